# SPDX-License-Identifier: Apache-2.0
"""The queue and its worker: one answer a job, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from triton_diffusers.engine import engine as engine_module
from triton_diffusers.engine import loops
from triton_diffusers.engine.deadline import Deadline
from triton_diffusers.engine.engine import Engine
from triton_diffusers.engine.jobs import Running
from triton_diffusers.engine.loops import one_run_at_a_time
from triton_diffusers.engine.patience import LEAST_S, MARGIN, UNKNOWN_S, Patience
from triton_diffusers.errors import BusyError, CancelledError

WAIT_S = 20


class RecordingJob:
    """Keeps what the engine says to it."""

    def __init__(
        self,
        work: Callable[[], Any] = lambda: None,
        priority: int = 0,
        read: Callable[[], None] = lambda: None,
        reads_files: bool = False,
        kind: Any = None,
    ) -> None:
        self.work = work
        self.priority = priority
        self.read = read
        self.reads_files = reads_files
        self.kind = kind
        self.amount = 1.0
        self.cancelled = False
        self.asked = 0
        self.answers: list[Any] = []
        self.done = threading.Event()

    def check(self) -> None:
        if self.cancelled:
            raise CancelledError("the request was cancelled")

    def ask(self) -> None:
        self.asked += 1

    def joins(self, other: RecordingJob) -> bool:
        return self.kind is not None and self.kind == other.kind

    def answer(self, result: Any) -> None:
        self._answer_once(result)

    def fail(self, error: BaseException) -> None:
        self._answer_once(error)

    def _answer_once(self, answer: Any) -> None:
        if not self.done.is_set():
            self.answers.append(answer)
            self.done.set()


class DeafJob(RecordingJob):
    """A job whose caller can no longer be reached."""

    def answer(self, result: Any) -> None:
        raise OSError("gone")

    def fail(self, error: BaseException) -> None:
        self.done.set()
        raise OSError("gone")


def run(jobs: Sequence[RecordingJob], beat: Callable[[], None]) -> list[Any]:
    return [job.work() for job in jobs]


ONE_BY_ONE = one_run_at_a_time(run)


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine(ONE_BY_ONE, max_queue=2)
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
    engine = Engine(ONE_BY_ONE, max_queue=9)
    jobs = [RecordingJob(lambda: time.sleep(0.01)) for _ in range(5)]
    for job in jobs:
        engine.submit(job)
    engine.close()
    assert all(job.answers == [None] for job in jobs)
    with pytest.raises(BusyError, match="being unloaded"):
        engine.submit(RecordingJob())
    engine.close()


def test_many_threads_get_one_answer_each() -> None:
    engine = Engine(ONE_BY_ONE, max_queue=1000)
    jobs = [RecordingJob(lambda i=i: i) for i in range(200)]
    threads = [threading.Thread(target=engine.submit, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    engine.close()
    assert [job.answers for job in jobs] == [[i] for i in range(200)]


def test_lower_priorities_run_first_and_equal_ones_in_order() -> None:
    engine, go, order = Engine(ONE_BY_ONE, max_queue=99), threading.Event(), []
    started = threading.Event()
    engine.submit(RecordingJob(lambda: started.set() or go.wait(WAIT_S)))
    assert started.wait(WAIT_S)
    for number, priority in enumerate([0, 5, 0, -3, 5, -3]):
        place = (priority, number)
        engine.submit(RecordingJob(lambda p=place: order.append(p), priority))
    go.set()
    engine.close()
    assert order == sorted(order)
    assert len(order) == 6


def test_files_are_read_while_another_job_runs(engine: Engine, blocker: Callable[[], None]) -> None:
    read = threading.Event()
    job = RecordingJob(lambda: "served", read=read.set, reads_files=True)
    engine.submit(job)
    assert read.wait(WAIT_S)
    assert engine.waiting == 1
    blocker()
    assert job.done.wait(WAIT_S)
    assert job.answers == ["served"]


@pytest.mark.parametrize("reads_files", [True, False])
def test_what_reading_raises_is_the_answer(engine: Engine, reads_files: bool) -> None:
    def read() -> None:
        raise ValueError("no picture")

    job = RecordingJob(read=read, reads_files=reads_files)
    engine.submit(job)
    assert job.done.wait(WAIT_S)
    assert [str(answer) for answer in job.answers] == ["no picture"]
    assert engine.waiting == 0


def test_the_next_job_runs_while_an_answer_is_encoded(engine: Engine) -> None:
    next_ran = threading.Event()

    class Encoding(RecordingJob):
        def answer(self, result: Any) -> None:
            assert next_ran.wait(WAIT_S)
            super().answer(result)

    first = Encoding(lambda: "first")
    engine.submit(first)
    engine.submit(RecordingJob(next_ran.set))
    assert first.done.wait(WAIT_S)
    assert first.answers == ["first"]


def test_jobs_that_join_run_as_one_up_to_the_limit() -> None:
    runs: list[list[Any]] = []
    go, started = threading.Event(), threading.Event()

    def together(jobs: Sequence[RecordingJob], beat: Callable[[], None]) -> list[Any]:
        runs.append([job.kind for job in jobs])
        started.set()
        assert go.wait(WAIT_S)
        return [job.work() for job in jobs]

    engine = Engine(one_run_at_a_time(together), max_queue=99, max_batch=3)
    first = RecordingJob(kind="first")
    engine.submit(first)
    assert started.wait(WAIT_S)
    jobs = [RecordingJob(lambda k=kind: k, kind=kind) for kind in "abababa"]
    jobs.append(RecordingJob(lambda: "alone"))
    for job in jobs:
        engine.submit(job)
    go.set()
    engine.close()
    assert runs == [["first"], list("aaa"), list("bbb"), ["a"], [None]]
    assert [job.answers for job in jobs] == [*([kind] for kind in "abababa"), ["alone"]]


def test_each_job_of_a_run_gets_its_own_result_or_error() -> None:
    def together(jobs: Sequence[RecordingJob], beat: Callable[[], None]) -> list[Any]:
        return [ValueError("bad") if job.kind == "bad" else "good" for job in jobs]

    engine = Engine(one_run_at_a_time(together), max_queue=9)
    good, bad = RecordingJob(), RecordingJob(kind="bad")
    engine.submit(good)
    engine.submit(bad)
    engine.close()
    assert good.answers == ["good"]
    assert [str(answer) for answer in bad.answers] == ["bad"]


def test_a_worker_may_take_more_before_it_gives() -> None:
    taken: list[int] = []

    def side_by_side(engine: Engine) -> None:
        while (first := engine.take()) is not None:
            running = [first]
            while (another := engine.take(within_s=0)) is not None:
                running.append(another)
            taken.append(len(running))
            for each in reversed(running):
                engine.give(each, [job.work() for job in each.jobs])

    go, started = threading.Event(), threading.Event()
    engine = Engine(side_by_side, 9, max_in_flight=9)
    engine.submit(RecordingJob(lambda: started.set() or go.wait(WAIT_S)))
    assert started.wait(WAIT_S)
    jobs = [RecordingJob(lambda n=number: n) for number in range(3)]
    for job in jobs:
        engine.submit(job)
    go.set()
    engine.close()
    assert taken == [1, 3]
    assert [job.answers for job in jobs] == [[0], [1], [2]]


def test_a_batch_waits_a_moment_for_as_many_as_came_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "GATHER", 1e6)
    monkeypatch.setattr(engine_module, "LONGEST_GATHER_S", WAIT_S)
    runs: list[int] = []
    go, started = threading.Event(), threading.Event()

    def together(jobs: Sequence[RecordingJob], beat: Callable[[], None]) -> list[Any]:
        runs.append(len(jobs))
        started.set()
        assert go.wait(WAIT_S)
        return [None for _ in jobs]

    engine = Engine(one_run_at_a_time(together), max_queue=99, max_batch=8)
    engine.submit(RecordingJob(kind="a"))
    assert started.wait(WAIT_S)
    first = [RecordingJob(kind="a") for _ in range(2)]
    for job in first:
        engine.submit(job)
    go.set()
    for job in first:
        assert job.done.wait(WAIT_S)
    early, late = RecordingJob(kind="a"), RecordingJob(kind="a")
    engine.submit(early)
    assert not early.done.wait(0.2)  # it would run at once, but two came before
    engine.submit(late)
    assert early.done.wait(WAIT_S)
    engine.close()
    assert runs == [1, 2, 2]


def test_those_that_come_together_after_a_pause_start_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "GATHER", 1e6)
    monkeypatch.setattr(loops, "LONGEST_GATHER_S", WAIT_S)

    class Lanes:
        """Jobs of one step each, the first of which waits for `least` jobs."""

        def __init__(self) -> None:
            self.running: list[Running] = []
            self.joined: list[int] = []
            self.least = 3

        @property
        def lanes(self) -> int:
            return len(self.running)

        def advance(self) -> None:
            if self.lanes < self.least:
                time.sleep(0.01)
                return
            self.least = 1
            self.joined.append(self.lanes)
            while self.running:
                engine.give(self.running.pop(), [None])

    lanes = Lanes()
    work = loops.side_by_side(lanes, 4, lambda _, running: lanes.running.append(running))
    engine = Engine(work, 99, max_in_flight=4)
    jobs = [RecordingJob() for _ in range(6)]
    for job in jobs[:3]:
        engine.submit(job)
    for job in jobs[:3]:
        assert job.done.wait(WAIT_S)
    for job in jobs[3:]:
        assert not jobs[3].done.wait(0.1)
        engine.submit(job)
    for job in jobs:
        assert job.done.wait(WAIT_S)
    engine.close()
    assert lanes.joined == [3, 3]


def test_a_worker_that_ends_leaves_nobody_waiting() -> None:
    told: list[str] = []

    def work(engine: Engine) -> None:
        assert engine.take() is not None
        raise ValueError("a fault of ours")

    engine = Engine(work, 9, log=told.append)
    job = RecordingJob()
    engine.submit(job)
    assert job.done.wait(WAIT_S)
    assert "the worker ended by itself: ValueError: a fault of ours" in str(job.answers[0])
    assert engine.health()["status"] == "stuck"
    with pytest.raises(BusyError, match="load the model again"):
        engine.submit(RecordingJob())
    engine.close()
    assert "Traceback" in told[0]


def test_what_joining_and_asking_raise_ends_no_thread() -> None:
    class Broken(RecordingJob):
        def joins(self, other: RecordingJob) -> bool:
            raise ValueError("joins")

        def ask(self) -> None:
            raise ValueError("asks")

    engine = Engine(ONE_BY_ONE, 9, max_batch=4)
    go, started = threading.Event(), threading.Event()
    first = Broken(lambda: started.set() or go.wait(WAIT_S))
    engine.submit(first)
    assert started.wait(WAIT_S)
    jobs = [Broken(lambda: "served") for _ in range(2)]
    for job in jobs:
        engine.submit(job)
    time.sleep(0.3)  # the watcher asks meanwhile
    late = RecordingJob()
    engine.submit(late)
    late.cancelled = True
    assert late.done.wait(WAIT_S)
    go.set()
    engine.close()
    assert [job.answers for job in jobs] == [["served"]] * 2
    assert [type(answer) for answer in late.answers] == [CancelledError]


def test_a_request_that_is_not_read_yet_is_dropped_too(engine: Engine) -> None:
    go = threading.Event()
    readers = [RecordingJob(read=lambda: go.wait(WAIT_S), reads_files=True) for _ in range(2)]
    for job in readers:
        engine.submit(job)
    for job in readers:
        job.cancelled = True
        assert job.done.wait(WAIT_S)
    go.set()
    assert engine.waiting == 0


def test_a_stuck_run_is_found_told_and_recovered_from() -> None:
    go, told = threading.Event(), []
    engine = Engine(ONE_BY_ONE, 9, patience=Patience(0.3), log=told.append)
    stuck, waiting = RecordingJob(lambda: go.wait(WAIT_S)), RecordingJob()
    assert engine.health()["status"] == "ready"
    for job in (stuck, waiting):
        engine.submit(job)
    for job in (stuck, waiting):
        assert job.done.wait(WAIT_S)
        (error,) = job.answers
        assert isinstance(error, BusyError)
        assert "no step for 0.3 s" in str(error)
    assert engine.health()["status"] == "stuck"
    assert len(told) == 1
    with pytest.raises(BusyError, match="load the model again"):
        engine.submit(RecordingJob())
    go.set()
    deadline = time.monotonic() + WAIT_S
    while engine.health()["status"] != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    served = RecordingJob(lambda: "served")
    engine.submit(served)
    assert served.done.wait(WAIT_S)
    assert served.answers == ["served"]
    assert len(stuck.answers) == 1
    engine.close()


def test_steps_keep_a_long_run_from_being_stuck() -> None:
    def steps(jobs: Sequence[RecordingJob], beat: Callable[[], None]) -> list[Any]:
        for _ in range(20):
            time.sleep(0.05)
            beat()
        return ["served"]

    engine = Engine(one_run_at_a_time(steps), 9, patience=Patience(0.6))
    job = RecordingJob()
    engine.submit(job)
    assert job.done.wait(WAIT_S)
    assert job.answers == ["served"]
    engine.close()


def test_a_stuck_run_does_not_hold_unloading() -> None:
    go = threading.Event()
    engine = Engine(ONE_BY_ONE, 9, patience=Patience(0.2), log=lambda _: None)
    engine.submit(RecordingJob(lambda: go.wait(WAIT_S)))
    engine.close()
    assert not go.is_set()
    go.set()


def test_deadline() -> None:
    Deadline(None).check()
    Deadline(60).check()
    late = Deadline(0.001)
    time.sleep(0.01)
    with pytest.raises(CancelledError, match=r"timeout of 0\.001 s"):
        late.check()


def test_a_job_whose_time_is_over_is_answered_while_it_runs(
    engine: Engine, blocker: Callable[[], None]
) -> None:
    go, started = threading.Event(), threading.Event()
    late = RecordingJob(lambda: started.set() or go.wait(WAIT_S))
    blocker()
    engine.submit(late)
    assert started.wait(WAIT_S)
    late.cancelled = True
    assert late.done.wait(WAIT_S)
    assert engine.health()["running"] == 1  # its place is taken until the call ends
    following = RecordingJob(lambda: "served")
    engine.submit(following)
    assert not following.done.wait(0.2)
    go.set()
    assert following.done.wait(WAIT_S)
    assert [type(answer) for answer in late.answers] == [CancelledError]


def test_a_job_whose_time_is_over_is_answered_while_its_result_is_encoded(engine: Engine) -> None:
    go = threading.Event()

    class Encoding(RecordingJob):
        def answer(self, result: Any) -> None:
            assert go.wait(WAIT_S)
            super().answer(result)

    job = Encoding()
    engine.submit(job)
    job.cancelled = True
    assert job.done.wait(WAIT_S)
    go.set()
    assert [type(answer) for answer in job.answers] == [CancelledError]


@pytest.mark.parametrize("results", [[], ["one", "too many"]])
def test_a_wrong_number_of_results_loses_nobody(results: list[Any]) -> None:
    engine = Engine(one_run_at_a_time(lambda jobs, beat: results), 9)
    jobs = [RecordingJob(), RecordingJob()]
    for job in jobs:
        engine.submit(job)
        assert job.done.wait(WAIT_S)
        assert f"1 requests ran and gave {len(results)} results" in str(job.answers[0])
    engine.close()


def test_a_file_that_no_thread_reads_is_refused_and_holds_nothing() -> None:
    engine = Engine(ONE_BY_ONE, 9)
    engine._readers.shutdown()
    job = RecordingJob(reads_files=True)
    engine.submit(job)
    assert job.done.wait(WAIT_S)
    assert "send the request again" in str(job.answers[0])
    assert engine.waiting == 0
    engine.close()


def test_a_log_that_fails_ends_neither_the_watcher_nor_an_answer() -> None:
    def broken(text: str) -> None:
        raise OSError("no room for the log")

    go = threading.Event()
    engine = Engine(ONE_BY_ONE, 9, patience=Patience(0.2), log=broken)
    for _ in range(2):  # the second finds the watcher alive
        job = RecordingJob(lambda: go.wait(WAIT_S))
        engine.submit(job)
        assert job.done.wait(WAIT_S)
        go.set()
        deadline = time.monotonic() + WAIT_S
        while engine.health()["status"] != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        go.clear()
    go.set()
    engine.close()


def test_patience_is_told_or_learned_and_grows_with_what_is_computed() -> None:
    assert Patience(7.0).of(1e6) == 7.0
    learned = Patience()
    assert learned.of(1) == UNKNOWN_S
    learned.saw(amount=1, longest_gap_s=0.01)
    assert learned.of(1) == LEAST_S
    learned.saw(amount=2, longest_gap_s=40)
    assert learned.of(2) == MARGIN * 40
    assert learned.of(1) == MARGIN * 20
    assert learned.of(3) == MARGIN * 60 * 1.5
    assert learned.of(1000) == UNKNOWN_S
    learned.saw(amount=2, longest_gap_s=1000)
    assert learned.of(1000) == MARGIN * 1000
    assert Patience(least_s=UNKNOWN_S).of(1) == UNKNOWN_S
