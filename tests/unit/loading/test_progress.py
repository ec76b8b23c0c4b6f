# SPDX-License-Identifier: Apache-2.0
"""The lines that tell how far a download or a load is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from triton_diffusers.loading import progress as load_progress
from triton_diffusers.loading.progress import (
    download_progress,
    filled_bytes,
    loading_progress,
    progress,
    repository_cache,
)

GIB = 2**30


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_progress, "FIRST_S", 0.02)
    monkeypatch.setattr(load_progress, "EVERY_S", 0.02)


def wait_for(lines: list[str], count: int = 1) -> None:
    end = time.monotonic() + 10
    while len(lines) < count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(lines) >= count


def test_growth_is_told_again_and_again() -> None:
    sizes = iter(range(0, 100 * GIB, GIB))
    lines: list[str] = []
    with progress(lines.append, lambda: "loading vae", lambda: next(sizes), 12 * GIB):
        wait_for(lines, 3)
    assert lines[0] == "loading vae: 1.0 of 12.0 GiB, 0 s"
    assert lines[2].startswith("loading vae: 3.0 of 12.0 GiB")
    told = len(lines)
    time.sleep(0.1)
    assert len(lines) == told


def test_unknown_total_and_shrinking() -> None:
    sizes = iter([GIB, 0, *[0] * 1000])
    lines: list[str] = []
    with progress(lines.append, lambda: "x", lambda: next(sizes)):
        wait_for(lines)
    assert lines[0] == "x: 0.0 GiB so far, 0 s"


def test_short_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_progress, "FIRST_S", 3600.0)
    lines: list[str] = []
    with progress(lines.append, lambda: "x", lambda: 0):
        pass
    assert lines == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_fails_does_not_stop_the_work() -> None:
    called = threading.Event()

    def log(line: str) -> None:
        called.set()
        raise OSError(line)

    with progress(log, lambda: "x", lambda: 0):
        assert called.wait(10)


def test_the_error_of_the_work_comes_through() -> None:
    with pytest.raises(ValueError, match="mine"), progress(print, lambda: "x", lambda: 0):
        raise ValueError("mine")


def test_the_component_is_named() -> None:
    lines: list[str] = []

    def from_pretrained(init_dict: dict[str, Any]) -> None:
        for name in init_dict:
            lines.clear()
            wait_for(lines, 2)
            assert lines[-1].startswith(f"loading {name}: ")

    with loading_progress(lines.append):
        wait_for(lines)
        assert lines[0].startswith("loading the pipeline: ")
        from_pretrained({"vae": 1, "text_encoder": 2})


def test_downloads_are_measured_in_the_hubs_cache(tmp_path: Path) -> None:
    lines: list[str] = []
    blobs = repository_cache("Qwen/Qwen-Image", tmp_path)
    with download_progress(lines.append, "Qwen/Qwen-Image", tmp_path):
        wait_for(lines)
        blobs.mkdir(parents=True)
        (blobs / "abc.incomplete").write_bytes(bytes(200 << 20))
        lines.clear()
        wait_for(lines, 2)
    assert lines[-1].startswith("downloading Qwen/Qwen-Image: 0.2 GiB so far, ")


def test_filled_bytes_are_our_own_memory() -> None:
    before = filled_bytes()
    block = bytearray(64 << 20)
    assert filled_bytes() - before >= len(block)
