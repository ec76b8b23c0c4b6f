# SPDX-License-Identifier: Apache-2.0
"""What the engine's worker does again and again: one run at a time, or several side by side."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from triton_diffusers.engine.engine import GATHER, LONGEST_GATHER_S, Engine, Work
from triton_diffusers.engine.jobs import Beat, Running

Run = Callable[[Sequence[Any], Beat], Sequence[Any]]
"""(jobs that run as one, what to call at each step) -> a result or an exception for each."""


class Lanes(Protocol):
    """Calls that run side by side."""

    lanes: int
    """How many run."""

    def advance(self) -> None:
        """Take some of them a step further."""


def one_run_at_a_time(run: Run) -> Work:
    """Return a worker's loop that makes one run after the other."""

    def work(engine: Engine) -> None:
        while (running := engine.take()) is not None:
            results: Sequence[Any]
            try:
                results = run(running.jobs, running.beat)
            except BaseException as error:
                results = [error] * len(running.jobs)
            engine.give(running, results)
            del running, results  # what a finished request held is not kept until the next comes

    return work


def side_by_side(lanes: Lanes, most: int, start: Callable[[Engine, Running], None]) -> Work:
    """Return a worker's loop that runs up to `most` jobs at once; new ones join between two steps.

    Those that come together after a pause start together: they share their first steps.
    start: lets a job run until it waits for a step, and `give`s its result when it has one.
    """

    def work(engine: Engine) -> None:
        together, patience_s = 1, 0.0
        while (running := engine.take()) is not None:
            started = time.monotonic()
            start(engine, running)
            end = started + patience_s
            while lanes.lanes < together and (
                running := engine.take(within_s=max(0.0, end - time.monotonic()))
            ):
                start(engine, running)
            together = 1
            while lanes.lanes:
                while lanes.lanes < most and (running := engine.take(within_s=0)):
                    start(engine, running)
                together = max(together, lanes.lanes)
                lanes.advance()
                engine.beat()  # a step of one: those that wait for their own are not stuck
            patience_s = min(GATHER * (time.monotonic() - started), LONGEST_GATHER_S)

    return work
