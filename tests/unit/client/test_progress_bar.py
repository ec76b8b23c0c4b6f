# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows while a call runs, and what the client makes of a streamed response."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triton_diffusers.client.call import InferenceRequest, read_progress
from triton_diffusers.client.clients import shown

STEP = np.array([2, 5], np.int64)


def _jpeg(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_terminal_shows_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    told: list[Any] = []
    with shown(True, "demo", lambda *step: told.append(step)) as on_progress:
        assert on_progress is not None
        on_progress(2, 5)
        on_progress(3, 0)
    assert told == [(2, 5), (3, 0)]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "demo" in captured.err
    assert "3/5" in captured.err


def test_a_spinner_where_no_step_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with shown(True, "demo", None):
        pass
    captured = capsys.readouterr().err
    assert "demo" in captured
    assert "0:00:00" in captured
    assert "/" not in captured


@pytest.mark.parametrize("wanted", [True, False])
def test_a_file_gets_nothing(wanted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    with shown(wanted, "demo", lambda *step: told.append(step)) as on_progress:
        assert on_progress is not None
        on_progress(1, 2)
    with shown(wanted, "demo", None) as nothing:
        assert nothing is None
    assert told == [(1, 2)]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("as_base64", [False, True])
def test_previews_reach_the_caller_as_pictures(as_base64: bool) -> None:
    seen: list[Any] = []
    inputs = {"output_base64": np.array([True])} if as_base64 else {}
    call = InferenceRequest("demo", inputs, on_preview=lambda *given: seen.append(given))
    files = [_jpeg((8, 4)), _jpeg((4, 8))]
    sent = [base64.b64encode(file) for file in files] if as_base64 else files
    assert read_progress(call, {"progress": STEP, "preview": np.array(sent, np.object_)})
    ((step, total, pictures),) = seen
    assert (step, total) == (2, 5)
    assert [picture.size for picture in pictures] == [(8, 4), (4, 8)]


def test_progress_without_a_preview_calls_on_progress_only() -> None:
    steps: list[Any] = []
    previews: list[Any] = []
    call = InferenceRequest(
        "demo",
        {},
        on_progress=lambda *step: steps.append(step),
        on_preview=lambda *given: previews.append(given),
    )
    assert read_progress(call, {"progress": STEP})
    assert (steps, previews) == ([(2, 5)], [])
    assert not read_progress(call, {"images": np.zeros((1, 8, 8, 3), np.uint8)})
    assert not read_progress(call, {"progress": STEP, "images": np.zeros((1, 8, 8, 3), np.uint8)})
