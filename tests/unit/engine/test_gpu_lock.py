# SPDX-License-Identifier: Apache-2.0
"""Turns among processes: one at a time, as they came, and none is lost with a process."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from triton_diffusers.engine.gpu_lock import GUARD, GpuLock
from triton_diffusers.errors import ConfigError

PROCESSES = multiprocessing.get_context("fork")
PATIENCE_S = 30


def _have_turns(root: Path, name: str, told: Any, go_on: Any, turns: int = 1) -> None:
    for _ in range(turns):
        told.put((name, "asks"))
        with GpuLock("one", root).held(lambda: True):
            told.put((name, "has"))
            assert go_on.acquire(timeout=PATIENCE_S)
            told.put((name, "gives"))


class _Others:
    """Other processes that want turns, and what they tell."""

    def __init__(self, root: Path) -> None:
        self.root = root / "locks"
        self.told, self.processes = PROCESSES.SimpleQueue(), {}
        self.go_on: dict[str, Any] = {}

    def start(self, name: str, turns: int = 1) -> None:
        self.go_on[name] = PROCESSES.Semaphore(0)
        given = (self.root, name, self.told, self.go_on[name], turns)
        self.processes[name] = PROCESSES.Process(target=_have_turns, args=given)
        self.processes[name].start()
        assert self.next() == (name, "asks")

    def next(self) -> tuple[str, str]:
        assert self.told._reader.poll(PATIENCE_S)
        told: tuple[str, str] = self.told.get()
        return told

    def in_line(self, count: int) -> None:
        """Wait until so many are in the queue."""
        folder = self.root / "one"
        for _ in range(PATIENCE_S * 1000):
            if len({p.name for p in folder.iterdir()} - {GUARD}) == count:
                return
            time.sleep(0.001)
        raise AssertionError(list(folder.iterdir()))


@pytest.fixture
def others(tmp_path: Path) -> Any:
    found = _Others(tmp_path)
    yield found
    for process in found.processes.values():
        process.kill()
        process.join()


def test_turns_come_as_they_were_asked_for(others: _Others) -> None:
    for count, name in enumerate(("first", "second", "third"), 1):
        others.start(name)
        if name == "first":
            assert others.next() == ("first", "has")
        others.in_line(count)
    for name, following in (("first", "second"), ("second", "third"), ("third", "")):
        others.go_on[name].release()
        assert others.next() == (name, "gives")
        if following:
            assert others.next() == (following, "has")
    others.processes["third"].join(PATIENCE_S)
    assert [p.name for p in (others.root / "one").iterdir()] == [GUARD]


def test_one_who_asks_again_and_again_lets_others_in(others: _Others) -> None:
    others.start("greedy", turns=2)
    assert others.next() == ("greedy", "has")
    others.start("other")
    others.in_line(2)
    for name in ("greedy", "other"):
        others.go_on[name].release()
    told = [others.next() for _ in range(5)]
    assert told.index(("other", "has")) < told.index(("greedy", "has"))


@pytest.mark.parametrize("victims", [("first",), ("second",), ("first", "second")], ids=str)
def test_the_turn_of_a_process_that_dies_goes_on(others: _Others, victims: tuple[str, ...]) -> None:
    others.start("first")
    assert others.next() == ("first", "has")
    for count, name in enumerate(("second", "third"), 2):
        others.start(name)
        others.in_line(count)
    for name in victims:
        others.processes[name].kill()
        others.processes[name].join(PATIENCE_S)
    if "first" not in victims:
        others.go_on["first"].release()
        assert others.next() == ("first", "gives")
    elif "second" not in victims:
        assert others.next() == ("second", "has")
        others.go_on["second"].release()
        assert others.next() == ("second", "gives")
    assert others.next() == ("third", "has")


def test_one_who_is_not_wanted_leaves_the_line(others: _Others) -> None:
    others.start("first")
    assert others.next() == ("first", "has")
    asked = iter([True, True, False])
    with GpuLock("one", others.root).held(lambda: next(asked)) as has_turn:
        assert not has_turn
        others.in_line(2)
    others.in_line(1)
    with GpuLock("another", others.root).held(lambda: False) as has_turn:
        assert has_turn  # other names do not wait for each other


def test_the_files_are_private(tmp_path: Path) -> None:
    GpuLock("one", tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "mine" / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("open", "link"):
        with pytest.raises(ConfigError, match="not a folder of this user alone"):
            GpuLock("one", tmp_path / name)
