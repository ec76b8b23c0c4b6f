# SPDX-License-Identifier: Apache-2.0
"""Processes that die or stall while callers wait: every one must heal."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.campaign.serving import Callers, Serving, serving
from tests.campaign.tally import Tally

STALL_S = 10


def kill_stubs(folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random) -> None:
    """Kill stubs at random moments; in every second round again, while the model loads."""

    def harm(running: Serving, number: int) -> None:
        _kill_one(running, draw)
        if number % 2:
            time.sleep(draw.uniform(0, 6))
            _kill_one(running, draw)

    _harm(folder, tally, rounds, callers, draw, harm)


def kill_servers(
    folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random
) -> None:
    """Kill tritonserver itself."""

    def harm(running: Serving, number: int) -> None:
        pid = running.server_pid()
        if pid is not None:
            os.kill(pid, draw.choice((signal.SIGKILL, signal.SIGSEGV)))

    _harm(folder, tally, rounds, callers, draw, harm)


def stall_stubs(folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random) -> None:
    """Stop stubs for a while, as a machine that swaps does."""

    def harm(running: Serving, number: int) -> None:
        for pid in running.stub_pids()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STALL_S)
                os.kill(pid, signal.SIGCONT)

    _harm(folder, tally, rounds, callers, draw, harm)


def kill_builder(
    folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random
) -> None:
    """Kill `builder serve`: its server ends with it, and the next one starts on a clean machine."""
    for number in range(rounds):
        tally.count("harmed")
        running = Serving(folder / str(number), ("pictures", "streams"))
        with Callers(running, tally, callers, draw.randrange(10**6)) as asking:
            asking.heals()
            running.end(tally, signal.SIGKILL)
        tally.count("healed")


def _kill_one(running: Serving, draw: random.Random) -> None:
    pids = running.stub_pids()
    with suppress(ProcessLookupError):
        if pids:
            os.kill(draw.choice(pids), signal.SIGKILL)


def _harm(
    folder: Path,
    tally: Tally,
    rounds: int,
    callers: int,
    draw: random.Random,
    harm: Callable[[Serving, int], None],
) -> None:
    seed = draw.randrange(10**6)
    with serving(folder, tally) as running, Callers(running, tally, callers, seed) as asking:
        asking.heals()
        for number in range(rounds):
            time.sleep(draw.uniform(0, 3))
            tally.count("harmed")
            harm(running, number)
            started = time.monotonic()
            if not asking.heals():
                tally.notes[f"round {number} did not heal: {_last_line(running)}"] += 1
                break
            tally.count("healed")
            tally.notes[f"healed within {10 * (1 + int(time.monotonic() - started) // 10)} s"] += 1


def _last_line(running: Serving) -> str:
    return (running.log.read_text().splitlines() or [""])[-1][:120]
