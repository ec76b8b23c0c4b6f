# SPDX-License-Identifier: Apache-2.0
"""What records of finished requests come to, without a server."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from triton_diffusers.errors import (
    BusyError,
    CancelledError,
    OutOfMemoryError,
    RequestError,
    StuckError,
    TimedOutError,
)
from triton_diffusers.running.record import (
    ALL_OUTCOMES,
    STAGES,
    Record,
    bytes_of,
    exclusive,
    outcome_of,
    whole_numbers,
)
from triton_diffusers.serving.metrics import FAMILIES, counts, observations

PARTS = {"encode_prompt": 1.0, "denoise": 2.0, "decode_latents": 3.0}
SERVED = Record(
    outcome="ok",
    steps=4,
    outputs=2,
    batch=3,
    seconds={"queue": 0.5, "pipeline": 6.0, "encode_outputs": 0.25, "total": 7.0} | PARTS,
    nan=True,
)
STOPPED = Record(outcome="timeout", steps=9, seconds={"queue": 1.0, "total": 2.0})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RequestError("x"), "invalid"),
        (BusyError("x"), "busy"),
        (StuckError("x"), "stuck"),
        (CancelledError("x"), "cancelled"),
        (TimedOutError("x"), "timeout"),
        (OutOfMemoryError("x"), "out_of_memory"),
        (ValueError("x"), "error"),
        (KeyboardInterrupt(), "error"),
    ],
)
def test_every_error_has_an_outcome(error: BaseException, outcome: str) -> None:
    assert outcome_of(error) == outcome
    assert outcome in ALL_OUTCOMES


def test_stages_that_contain_others_are_not_added_twice() -> None:
    assert exclusive(SERVED.seconds) == {"queue": 0.5, "encode_outputs": 0.25} | PARTS
    assert exclusive({"pipeline": 6.0, "total": 7.0}) == {"pipeline": 6.0}


def test_what_counters_and_histograms_get() -> None:
    grown: Counter[tuple[str, str]] = Counter()
    for name, label, number in counts([SERVED, STOPPED, STOPPED]):
        grown[name, label] += number
    assert grown["requests_total", "ok"] == 1
    assert grown["requests_total", "timeout"] == 2
    assert grown["steps_total", ""] == 22
    assert (grown["outputs_total", ""], grown["nan_requests_total", ""]) == (2, 1)
    assert sum(n for (name, _), n in grown.items() if name == "stage_seconds_total") == 6.75
    found = set(observations([SERVED, STOPPED]))
    assert found == {("request_seconds", "", 7.0), ("batch_size", "", 3)}


def test_series_are_those_of_the_table() -> None:
    families = {family.name: family for family in FAMILIES}
    assert len(families) == len(FAMILIES)
    for name, label, _ in [*counts([SERVED]), *observations([SERVED])]:
        assert label in (families[name].values or ("",))
    for family in FAMILIES:
        assert family.kind in ("counter", "gauge", "histogram")
        assert (family.kind == "histogram") == bool(family.buckets)
        assert family.about.endswith(".")
    assert set(families["stage_seconds_total"].values) == set(STAGES)


def test_a_record_is_one_line_of_json() -> None:
    record = Record('a "quoted"\nid', seconds={"total": 1 / 3})
    assert "\n" not in record.as_json()
    read = json.loads(record.as_json())
    assert read["request_id"] == record.request_id
    assert read["seconds"] == {"total": 0.333333}


def test_whole_numbers_and_bytes() -> None:
    arguments = {"height": 8, "prompt": "a", "clip": True, "guidance_scale": 1.5, "n": None}
    assert whole_numbers(arguments) == {"height": 8}
    texts = np.array([b"abc", b"de"], np.object_)
    assert bytes_of([texts, np.zeros((2, 3), np.int64)]) == 5 + 48
