# SPDX-License-Identifier: Apache-2.0
"""The queue and the threads that read, run and answer requests. Knows no Triton, no diffusers.

A job is read (its files decoded), waits, runs alone or with others like it, and is answered (its
result encoded). Reading and answering have threads of their own: the next job runs meanwhile.
"""

import itertools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triton_diffusers.engine.jobs import Job, Running, ask, fail, is_wanted, joins
from triton_diffusers.engine.patience import Patience
from triton_diffusers.errors import BusyError, StuckError, one_line

WATCH_S = 0.05
"""How often it is asked whether the callers of running jobs are still there."""
LOOKS_AT_WAITING = 4
"""After so many looks those of waiting jobs are asked for too."""
READERS = 2
ANSWERERS = 2
MOST_UNANSWERED = 8
"""Results that wait to be encoded and sent, for each job that may run at once."""
GATHER = 0.1
"""How long a batch waits for more jobs, as a share of the time that the last run took."""
LONGEST_GATHER_S = 0.05

_log = logging.getLogger(__name__).error


Work = Callable[["Engine"], None]
"""What the worker does: `take` jobs and `give` their results until there are none to come."""


class Engine:
    """A bounded queue ordered by priority, a worker that runs jobs, and a watcher of both."""

    def __init__(
        self,
        work: Work,
        max_queue: int,
        max_batch: int = 1,
        max_in_flight: int = 1,
        patience: Patience | None = None,
        log: Callable[[str], None] = _log,
    ) -> None:
        """Start the threads.

        work: the loop of the only thread that touches the pipeline, which is not made for several.
        max_batch: most jobs of one run. max_in_flight: most jobs that it takes before it gives.
        patience: how long a run may go without a step; then it is stuck: its jobs and those that
        wait are answered with an error, and new ones are refused.
        """
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._patience = patience or Patience()
        self._log = log
        self._changed = threading.Condition()
        self._closed = False
        self._count = itertools.count()
        self._waiting: dict[tuple[int, int], Job] = {}
        self._reading: dict[tuple[int, int], Job] = {}
        self._running: list[Running] = []
        self._stuck: list[Running] = []
        self._answering: list[Job] = []
        """Those that have run and whose results are encoded and sent."""
        self._ended = ""  # why the worker ended, which it never should
        self._gather = (1, 0.0)  # how many jobs to wait for, and how long
        self._readers = ThreadPoolExecutor(READERS, "read")
        self._answerers = ThreadPoolExecutor(ANSWERERS, "answer")
        self._unanswered = threading.Semaphore(MOST_UNANSWERED * max(max_in_flight, max_batch))
        self._finished = threading.Event()
        self._worker = threading.Thread(
            target=self._work, args=(work,), name="pipeline", daemon=True
        )
        self._watcher = threading.Thread(target=self._watch, name="queue", daemon=True)
        for thread in (self._worker, self._watcher):
            thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs are read or wait."""
        return len(self._waiting) + len(self._reading)

    def health(self) -> dict[str, Any]:
        """Return `status` (ready, stuck or unloading), and how many jobs wait and run."""
        with self._changed:
            now = time.monotonic()
            beaten = [running.beaten_at for running in self._running]
            amounts = [running.amount for running in self._running]
            is_stuck = self._stuck or self._ended
            status = "stuck" if is_stuck else "unloading" if self._closed else "ready"
            return {
                "status": status,
                "waiting": self.waiting,
                "running": sum(len(running.jobs) for running in self._running),
                "seconds_since_last_step": round(now - min(beaten), 3) if beaten else None,
                "stuck_after_s": round(self._patience.of(max(amounts)), 3) if amounts else None,
            }

    def submit(self, job: Job) -> None:
        """Take a job, which is answered from now on. Raises BusyError when the queue is full."""
        with self._changed:
            if self._closed:
                raise BusyError("the model is being unloaded; send the request again later")
            if self._stuck or self._ended:
                raise StuckError(self._told_stuck())
            if self.waiting >= self._max_queue:
                raise BusyError(
                    f"the queue is full: {self.waiting} requests wait (max_queue "
                    f"{self._max_queue}); send the request again later"
                )
            place = (job.priority, next(self._count))
            self._reading[place] = job
        if not job.reads_files:
            self._read(job, place)
            return
        try:
            self._readers.submit(self._read, job, place)
        except RuntimeError as error:  # closed meanwhile, or no thread to be had
            self._withdraw(place, BusyError(f"{error}; send the request again later"))

    def close(self) -> None:
        """Refuse new jobs, finish those accepted, end the threads; a stuck one is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while self._worker.is_alive() and not self._stuck:
            self._worker.join(WATCH_S)
        self._readers.shutdown()
        for place in [*self._waiting, *self._reading]:  # a stuck run left them
            self._withdraw(place, BusyError("the model was unloaded; send the request again"))
        self._answerers.shutdown()
        self._finished.set()
        self._watcher.join()

    def _read(self, job: Job, place: tuple[int, int]) -> None:
        failure: BaseException | None = None
        try:
            job.check()
            job.read()
        except BaseException as error:
            failure = error
        with self._changed:
            is_wanted = self._reading.pop(place, None) is not None
            if failure is None and is_wanted:
                self._waiting[place] = job
            self._changed.notify_all()
        if failure is not None and is_wanted:
            fail(job, failure)

    def _work(self, work: Work) -> None:
        try:
            work(self)
        except BaseException as error:  # a fault of ours: nobody shall wait for its worker
            with self._changed:
                self._ended = one_line(error)
                jobs = [job for running in self._running for job in running.jobs]
                places = [*self._waiting, *self._reading]
            for job in jobs:
                fail(job, StuckError(self._told_stuck()))
            for place in places:
                self._withdraw(place, StuckError(self._told_stuck()))
            self._log("".join(traceback.format_exception(error)))

    def take(self, within_s: float | None = None) -> Running | None:
        """Return the jobs to run next; None when none come within a time, or none will come."""
        end = None if within_s is None else time.monotonic() + within_s
        while True:
            jobs = self._next(end)
            if jobs is None:
                return None
            wanted = [job for job in jobs if is_wanted(job)]
            if wanted:
                running = Running(wanted)
                with self._changed:
                    self._running.append(running)
                return running

    def beat(self) -> None:
        """Tell that a step was made for which all that run had to wait."""
        with self._changed:
            for running in self._running:
                running.beat()

    def give(self, running: Running, results: Sequence[Any]) -> None:
        """Have the jobs of a run answered with their results, or exceptions.

        Those that were answered before, because their time was over, are not answered again.
        """
        if len(results) != len(running.jobs):
            error = RuntimeError(
                f"{len(running.jobs)} requests ran and gave {len(results)} results"
            )
            results = [error] * len(running.jobs)
        running.beat()
        with self._changed:
            self._running.remove(running)
            self._answering += running.jobs
            if running in self._stuck:
                self._stuck.remove(running)
            if not any(isinstance(result, BaseException) for result in results):
                self._patience.saw(running.amount, running.longest_gap_s)
            seconds = time.monotonic() - running.since
            self._gather = (self._gather[0], min(GATHER * seconds, LONGEST_GATHER_S))
        for job, result in zip(running.jobs, results, strict=True):
            self._unanswered.acquire()
            try:
                self._answerers.submit(self._answer, job, result)
            except RuntimeError:  # closed meanwhile, without waiting for a run that was stuck
                self._answer(job, result)

    def _next(self, end: float | None) -> list[Job] | None:
        """Wait for jobs worth running now, until `end`, and take them out of the queue."""
        with self._changed:
            gathering_since: float | None = None
            while True:
                if self._waiting:
                    gathering_since = gathering_since or time.monotonic()
                    places = self._alike()
                    enough, patience_s = self._gather
                    rest = gathering_since + patience_s - time.monotonic()
                    if len(places) >= enough or rest <= 0 or self._closed:
                        jobs = [self._waiting.pop(place) for place in places]
                        self._gather = (min(self._max_batch, len(jobs) + self.waiting), patience_s)
                        return jobs
                    self._changed.wait(rest)
                elif self._closed and not self._reading:
                    return None
                else:
                    gathering_since = None
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        return None
                    self._changed.wait(left)

    def _alike(self) -> list[tuple[int, int]]:
        """Return the place of the first job, and of those that may run with it."""
        if self._max_batch == 1:
            return [min(self._waiting)]
        first, *others = sorted(self._waiting)
        job = self._waiting[first]
        alike = [place for place in others if joins(job, self._waiting[place])]
        return [first, *alike[: self._max_batch - 1]]

    def _answer(self, job: Job, result: Any) -> None:
        try:
            if isinstance(result, BaseException):
                fail(job, result)
            else:
                job.answer(result)
        except BaseException as error:
            fail(job, error)
        finally:
            with self._changed:
                self._answering.remove(job)
            self._unanswered.release()

    def _watch(self) -> None:
        for look in itertools.count():
            if self._finished.wait(WATCH_S):
                return
            try:
                self._look(is_waiting_due=look % LOOKS_AT_WAITING == 0)
                self._look_for_stuck()
            except Exception:  # whatever it is, others' time goes on
                _log(traceback.format_exc())

    def _look(self, is_waiting_due: bool) -> None:
        """Ask for callers, and answer those whose time is over: a call may end long after."""
        with self._changed:
            waiting = [*self._waiting.items(), *self._reading.items()] if is_waiting_due else []
            running = [job for running in self._running for job in running.jobs]
            answering = list(self._answering)
        for job in running:
            ask(job)
        for job in (*running, *answering):
            is_wanted(job)
        for place, job in waiting:
            ask(job)
            try:
                job.check()
            except Exception as error:
                self._withdraw(place, error)

    def _withdraw(self, place: tuple[int, int], error: BaseException) -> None:
        """Answer a waiting job with an error, unless a worker has it already."""
        with self._changed:
            job = self._waiting.pop(place, None) or self._reading.pop(place, None)
            self._changed.notify_all()
        if job is not None:
            fail(job, error)

    def _look_for_stuck(self) -> None:
        with self._changed:
            now = time.monotonic()
            stuck = [
                running
                for running in self._running
                if now - running.beaten_at > self._patience.of(running.amount)
            ]
            new = [running for running in stuck if running not in self._stuck]
            self._stuck = stuck
            waiting = [*self._waiting, *self._reading] if stuck else []
        if not stuck:
            return
        error = StuckError(self._told_stuck())
        for running in new:
            for job in running.jobs:
                fail(job, error)
        for place in waiting:
            self._withdraw(place, error)
        if new:
            self._log(str(error))

    def _told_stuck(self) -> str:
        if self._ended:
            return f"the worker ended by itself: {self._ended}; load the model again"
        with self._changed:
            amount = max((running.amount for running in self._stuck), default=1.0)
        return (
            f"a call has made no step for {self._patience.of(amount):g} s (stuck_after_s of the "
            "entry) and cannot be stopped; load the model again"
        )
