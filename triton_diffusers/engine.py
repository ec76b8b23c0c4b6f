# SPDX-License-Identifier: Apache-2.0
"""The queue and the workers that run calls. Knows nothing of Triton or diffusers."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from triton_diffusers.errors import BusyError, CancelledError

WATCH_S = 0.2
"""How often waiting jobs are looked at: a caller that went away frees its place in the queue."""


class Job(Protocol):
    """One request, from acceptance to its one answer."""

    def check(self) -> None:
        """Raise CancelledError when the caller went away or the time is over."""

    def answer(self, result: Any) -> None:
        """Send the result. Called once, unless `fail` was."""

    def fail(self, error: BaseException) -> None:
        """Send an error. Called at most once, also after a failed `answer`."""


class Engine:
    """A bounded queue, one worker or several, and a watcher of the queue."""

    def __init__(self, run: Callable[[Any], Any], max_queue: int, workers: int = 1) -> None:
        """`run(job)` does the work of one job and returns what `job.answer` sends.

        workers: how many jobs run at once; pipelines are not thread-safe (see step_batching.py).
        """
        self._run = run
        self._max_queue = max_queue
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._working = workers
        self._finished = threading.Event()
        targets = [*[(self._work, "pipeline")] * workers, (self._watch, "queue")]
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True) for target, name in targets
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Queue a job, which the worker answers. Raises BusyError when the queue is full."""
        with self._changed:
            if self._closed:
                raise BusyError("the model is being unloaded; send the request again later")
            if len(self._jobs) >= self._max_queue:
                raise BusyError(
                    f"the queue is full: {len(self._jobs)} requests wait (max_queue "
                    f"{self._max_queue}); send the request again later"
                )
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Refuse new jobs, finish those accepted, end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)
            del job  # what a finished request held is not kept until the next one comes
        with self._changed:
            self._working -= 1
            if self._working == 0:
                self._finished.set()

    def _next(self) -> Job | None:
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            return self._jobs.popleft()

    def _do(self, job: Job) -> None:
        try:
            job.check()
            job.answer(self._run(job))
        except BaseException as error:
            _fail(job, error)

    def _watch(self) -> None:
        while not self._finished.wait(WATCH_S):
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        with self._changed:
            waiting = list(self._jobs)
        for job in waiting:
            try:
                job.check()
            except CancelledError as error:
                if self._withdraw(job):
                    _fail(job, error)

    def _withdraw(self, job: Job) -> bool:
        """Take a job out of the queue; False when the worker has it already."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True


def _fail(job: Job, error: BaseException) -> None:
    """Answer with an error; a worker that dies would leave every later caller waiting."""
    try:
        job.fail(error)
    except Exception:
        logging.getLogger(__name__).exception("no answer could be sent")


class Deadline:
    """The moment after which a request is not worth answering."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise CancelledError when the time is over."""
        if self._end is not None and time.monotonic() > self._end:
            raise CancelledError(f"the request's timeout of {self.timeout_s} s is over")
