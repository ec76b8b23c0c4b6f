# SPDX-License-Identifier: Apache-2.0
"""The queue and its worker: one answer a job, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from triton_diffusers.engine import Deadline, Engine
from triton_diffusers.errors import BusyError, CancelledError

WAIT_S = 20


class RecordingJob:
    """Keeps what the engine says to it."""

    def __init__(self, work: Callable[[], Any] = lambda: None) -> None:
        self.work = work
        self.cancelled = False
        self.answers: list[Any] = []
        self.done = threading.Event()

    def check(self) -> None:
        if self.cancelled:
            raise CancelledError("the request was cancelled")

    def answer(self, result: Any) -> None:
        self.answers.append(result)
        self.done.set()

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)
        self.done.set()


class DeafJob(RecordingJob):
    """A job whose caller can no longer be reached."""

    def answer(self, result: Any) -> None:
        raise OSError("gone")

    def fail(self, error: BaseException) -> None:
        self.done.set()
        raise OSError("gone")


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine(lambda job: job.work(), max_queue=2)
    yield running
    running.close()


@pytest.fixture
def blocker(engine: Engine) -> Iterator[Callable[[], None]]:
    """The worker is held by a running job until the returned function is called."""
    started, go = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(WAIT_S)

    engine.submit(RecordingJob(work))
    assert started.wait(WAIT_S)
    yield go.set
    go.set()


def test_results_are_answered_in_order(engine: Engine) -> None:
    order: list[int] = []
    jobs = [RecordingJob(lambda i=i: order.append(i) or i) for i in range(2)]
    for job in jobs:
        engine.submit(job)
        assert job.done.wait(WAIT_S)
    assert order == [0, 1]
    assert [job.answers for job in jobs] == [[0], [1]]


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(), MemoryError()]
)
def test_an_exception_is_that_jobs_answer_and_the_worker_lives(
    engine: Engine, error: BaseException
) -> None:
    def work() -> None:
        raise error

    broken, good = RecordingJob(work), RecordingJob(lambda: "good")
    for job in (broken, good):
        engine.submit(job)
        assert job.done.wait(WAIT_S)
    assert broken.answers == [error]
    assert good.answers == ["good"]


def test_an_unreachable_caller_does_not_end_the_worker(engine: Engine) -> None:
    deaf, good = DeafJob(), RecordingJob(lambda: "good")
    for job in (deaf, good):
        engine.submit(job)
        assert job.done.wait(WAIT_S)
    assert good.answers == ["good"]


def test_a_full_queue_refuses_at_once(engine: Engine, blocker: Callable[[], None]) -> None:
    waiting = [RecordingJob(lambda: "served") for _ in range(2)]
    for job in waiting:
        engine.submit(job)
    assert engine.waiting == 2
    with pytest.raises(BusyError, match=r"queue is full: 2 requests wait .*send the request again"):
        engine.submit(RecordingJob())
    blocker()
    for job in waiting:
        assert job.done.wait(WAIT_S)
        assert job.answers == ["served"]


def test_a_cancelled_job_leaves_the_queue_while_another_runs(
    engine: Engine, blocker: Callable[[], None]
) -> None:
    job = RecordingJob(lambda: "served")
    engine.submit(job)
    job.cancelled = True
    assert job.done.wait(WAIT_S)
    assert engine.waiting == 0
    assert [type(a) for a in job.answers] == [CancelledError]


def test_close_finishes_what_was_accepted() -> None:
    engine = Engine(lambda job: job.work(), max_queue=9)
    jobs = [RecordingJob(lambda: time.sleep(0.01)) for _ in range(5)]
    for job in jobs:
        engine.submit(job)
    engine.close()
    assert all(job.answers == [None] for job in jobs)
    with pytest.raises(BusyError, match="being unloaded"):
        engine.submit(RecordingJob())
    engine.close()


def test_many_threads_get_one_answer_each() -> None:
    engine = Engine(lambda job: job.work(), max_queue=1000)
    jobs = [RecordingJob(lambda i=i: i) for i in range(200)]
    threads = [threading.Thread(target=engine.submit, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    engine.close()
    assert [job.answers for job in jobs] == [[i] for i in range(200)]


def test_deadline() -> None:
    Deadline(None).check()
    Deadline(60).check()
    late = Deadline(0.001)
    time.sleep(0.01)
    with pytest.raises(CancelledError, match=r"timeout of 0\.001 s"):
        late.check()
