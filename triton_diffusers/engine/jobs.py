# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a job. Whatever a job raises, the engine's threads live on."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class Job(Protocol):
    """One request, from acceptance to its one answer."""

    priority: int
    """Lower ones run first; equal ones in the order in which they came."""
    reads_files: bool
    """Whether reading takes so long that a thread has to do it."""

    amount: float
    """How much one step of it computes, in any unit: what long ones take is judged by it."""

    def check(self) -> None:
        """Raise CancelledError when the caller is known to be away or the time is over."""

    def ask(self) -> None:
        """Find out whether the caller went away; asked again and again, in a thread."""

    def read(self) -> None:
        """Decode the request. What it raises is answered."""

    def joins(self, other: Any) -> bool:
        """Tell whether both may run as one; asked only where batches may be larger than one."""

    def answer(self, result: Any) -> None:
        """Encode the result and send it. Called once, unless `fail` was."""

    def fail(self, error: BaseException) -> None:
        """Send an error; does nothing after an answer."""


Beat = Callable[[], None]


@dataclass(eq=False)
class Running:
    """Jobs that run as one."""

    jobs: Sequence[Job]
    since: float = field(default_factory=time.monotonic)
    beaten_at: float = field(default_factory=time.monotonic)
    longest_gap_s: float = 0.0
    """The longest time between two steps; its start and end count as steps."""

    def beat(self) -> None:
        """Tell that a step was made."""
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self.beaten_at)
        self.beaten_at = now

    @property
    def amount(self) -> float:
        """Return how much one step of all its jobs computes."""
        return sum(job.amount for job in self.jobs)


def joins(job: Job, other: Job) -> bool:
    """Tell whether two jobs may run as one."""
    try:
        return job.joins(other)
    except Exception:
        _log.exception("two requests could not be compared")
        return False


def ask(job: Job) -> None:
    """Have a job find out whether its caller went away."""
    try:
        job.ask()
    except Exception:
        _log.exception("a caller could not be asked for")


def is_wanted(job: Job) -> bool:
    """Tell whether somebody waits for a job; it is answered where nobody does."""
    try:
        job.check()
    except BaseException as error:
        fail(job, error)
        return False
    return True


def fail(job: Job, error: BaseException) -> None:
    """Answer a job with an error."""
    try:
        job.fail(error)
    except Exception:
        _log.exception("no answer could be sent")
