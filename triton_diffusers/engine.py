# SPDX-License-Identifier: Apache-2.0
"""The queue and the worker that runs calls, one at a time. Knows nothing of Triton or diffusers."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from triton_diffusers.errors import BusyError, CancelledError


class Job(Protocol):
    """One request, from acceptance to its one answer."""

    def check(self) -> None:
        """Raise CancelledError when the caller went away or the time is over."""

    def answer(self, result: Any) -> None:
        """Send the result. Called once, unless `fail` was."""

    def fail(self, error: BaseException) -> None:
        """Send an error. Called at most once, also after a failed `answer`."""


class Engine:
    """A bounded queue and one worker thread (pipelines are not thread-safe)."""

    def __init__(self, run: Callable[[Any], Any], max_queue: int) -> None:
        """`run(job)` does the work of one job and returns what `job.answer` sends."""
        self._run = run
        self._max_queue = max_queue
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="pipeline", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return self._waiting

    def submit(self, job: Job) -> None:
        """Queue a job; the worker answers it. Raises BusyError when the queue is full."""
        with self._lock:
            if self._closed:
                raise BusyError("the model is being unloaded; send the request again later")
            if self._waiting >= self._max_queue:
                raise BusyError(
                    f"the queue is full: {self._waiting} requests wait (max_queue "
                    f"{self._max_queue}); send the request again later"
                )
            self._waiting += 1
            self._jobs.put(job)

    def close(self) -> None:
        """Refuse new jobs, finish those accepted, end the worker."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._worker.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._waiting -= 1
            self._do(job)
            del job  # what a finished request held is not kept until the next one comes

    def _do(self, job: Job) -> None:
        try:
            job.check()
            job.answer(self._run(job))
        except BaseException as error:
            job.fail(error)


class Deadline:
    """The moment after which a request is not worth answering."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise CancelledError when the time is over."""
        if self._end is not None and time.monotonic() > self._end:
            raise CancelledError(f"the request's timeout of {self.timeout_s} s is over")
