# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks count: what is asked for, and what rates and ratios are made of."""

from itertools import islice

import pytest

from benchmarks.callers import mean_and_p95, steady_rate
from benchmarks.throughput import medians, ratios
from benchmarks.work import EQUAL, MIXED, Work


def test_requests_differ_in_prompt_and_seed_and_are_the_same_every_time():
    requests = list(islice(MIXED.requests(), 300))
    assert len({r.prompt for r in requests}) == len({r.number for r in requests}) == 300
    assert {r.steps for r in requests} == set(range(8, 41))
    assert requests == list(islice(MIXED.requests(), 300))


def test_rounds_ask_for_different_pictures():
    first, second = (list(islice(Work(draw=n).requests(), 100)) for n in (1, 2))
    assert not {r.number for r in first} & {r.number for r in second}


def test_work_travels_as_json():
    fields = {"steps": [8, 40], "sizes": [64], "draw": 0}
    assert Work.read(fields) == MIXED
    assert Work.read(vars(EQUAL)) == EQUAL


@pytest.mark.parametrize(
    ("moments", "clients"),
    [
        ([float(n) / 4 for n in range(40)], 4),  # one by one
        ([float(n // 4) for n in range(40)], 4),  # batches of 4, a second each
    ],
)
def test_a_rate_is_that_of_the_time_when_all_callers_waited(moments, clients):
    assert steady_rate(moments, clients) == pytest.approx(4.0)


def test_slow_starts_and_ends_do_not_count():
    moments = [50.0, *(50.0 + n for n in range(1, 12)), 500.0]
    assert steady_rate(moments, 1) == pytest.approx(1.0)


def test_latencies():
    mean, p95 = mean_and_p95([float(n) for n in range(1, 101)])
    assert mean == 50.5
    assert 95 <= p95 <= 96


def test_ratios_are_of_rounds_and_only_of_what_was_measured():
    measured = {"plain": [1.0, 10.0, 2.0], "serial": [2.0, 20.0, 1.0], "limit": [3.0, 30.0, 6.0]}
    assert ratios(measured) == {"serial_vs_plain": 2.0, "limit_vs_plain": 3.0}
    assert medians(measured) == {"plain_per_s": 2.0, "serial_per_s": 2.0, "limit_per_s": 6.0}


def test_latencies_are_divided_like_rates():
    measured = {}
    for way, value in (("step_batching", 1.0), ("request_batching", 4.0)):
        measured |= {f"{way}_mixed{what}": [value] for what in ("", "_mean", "_p95")}
    found = ratios(measured)
    names = {f"step_batching_vs_request_batching_mixed{what}" for what in ("", "_mean", "_p95")}
    assert found == dict.fromkeys(names, 0.25)
    assert medians(measured)["step_batching_mixed_mean_s"] == 1.0
