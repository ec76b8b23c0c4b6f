# SPDX-License-Identifier: Apache-2.0
"""The jobs of this gateway: it queues them, runs those that nobody runs, and removes old ones.

The database says who runs what (store.py). A gateway renews the lease of each job it runs; when
that fails the job was deleted, or taken over, and its call is cancelled: the model stops.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

from sqlalchemy.exc import DataError, SQLAlchemyError

from triton_diffusers.errors import ConfigError, one_line
from triton_diffusers.gateway.errors import ApiError, busy, invalid
from triton_diffusers.gateway.jobs.database import default_database, default_folder
from triton_diffusers.gateway.jobs.files import FilesError, JobFiles
from triton_diffusers.gateway.jobs.runs import Context, JobOutcome, Retry, run_job
from triton_diffusers.gateway.jobs.store import FAILED, ID, JobsFullError, JobStore, StoredJob
from triton_diffusers.gateway.settings import Settings

POLL_S = 1.0
"""How often an idle gateway looks for jobs of others; its own start at once."""

RENEW_S = 1.0
"""How often a running job's lease is renewed, its progress written, and looked for its end."""

SWEEP_S = 300.0
"""How often old jobs and files are looked for, at most."""

DATABASE_THREADS = 4
END_S = 6.0
"""How long the database may take to hear of the gateway's end."""

COUNT_S = 2.0
ANSWER_S = 15.0
"""How long /metrics, and a caller, wait for the database, in a line with others."""

FULL_RETRY_S = 30

log = logging.getLogger(__name__)

T = TypeVar("T")


def open_store(settings: Settings) -> tuple[JobStore, JobFiles]:
    """Open the database and the store of files that the settings name, or the defaults.

    Raises ConfigError where one of them cannot be used.
    """
    store = JobStore(settings.database or default_database())
    try:
        store.prepare()
    except SQLAlchemyError as error:
        raise ConfigError(f"the jobs' database cannot be used: {one_line(error)}") from None
    return store, JobFiles(settings.files or str(default_folder() / "files"))


class Jobs:
    """Queues, runs and removes jobs from start() to close()."""

    def __init__(self, context: Context, store: JobStore):
        self._context, self._settings, self._store = context, context.settings, store
        self.files = context.files
        self._owner = secrets.token_hex(8)
        self._threads = ThreadPoolExecutor(DATABASE_THREADS, "jobs-database")
        self._added = asyncio.Event()
        self._calls: dict[str, asyncio.Task[JobOutcome | Retry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to work."""
        for work in (self._dispatch(), self._sweep()):
            self._begin(work)

    async def close(self) -> None:
        """Stop working. What ran goes back into the queue."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        end = asyncio.ensure_future(asyncio.to_thread(self._end))
        if not (await asyncio.wait((end,), timeout=END_S))[0]:
            self._store.cut()
        await end

    def _end(self) -> None:
        self._threads.shutdown(cancel_futures=True)  # a claim may be under way
        with suppress(SQLAlchemyError):
            self._store.release_all(self._owner)
        self._store.close()

    async def add(
        self, id: str, values: Mapping[str, Any], media: Mapping[str, list[bytes]]
    ) -> StoredJob:
        """Queue a job with the files that it takes. Raises ApiError 429, 503."""
        names = {
            name: [f"{id}-{name}-{index}" for index in range(len(contents))]
            for name, contents in media.items()
        }
        stored = [file for files in names.values() for file in files]
        try:
            for name, contents in media.items():
                for file, content in zip(names[name], contents, strict=True):
                    await asyncio.to_thread(self.files.write, file, content)
            row = {**values, "id": id, "media": names}
            limits = self._settings.max_jobs, self._settings.max_stored_jobs
            job = await self._ask(self._store.add, row, *limits)
        except BaseException as error:
            await asyncio.to_thread(self.files.remove, *stored)
            if isinstance(error, JobsFullError):
                raise _full(error) from None
            if isinstance(error, FilesError):
                log.warning("job %s: its files cannot be stored: %s", id, error)
                raise busy("the job's files cannot be stored; send it again later") from None
            raise
        self._added.set()
        return job

    async def get(self, id: str) -> StoredJob:
        """Return a job. Raises ApiError 404."""
        job = await self._ask(self._store.get, id) if ID.fullmatch(id) else None
        if job is None:
            raise _missing(id)
        return job

    async def page(
        self, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> tuple[list[StoredJob], bool]:
        """Return some of the jobs, and whether there are more. Raises ApiError 400."""
        is_id = after is None or ID.fullmatch(after)
        found = await self._ask(self._store.page, after, limit, order) if is_id else None
        if found is None:
            raise invalid(
                f"after: there is no '{(after or '')[:80]}'; send the id of one that exists",
                "after",
            )
        return found

    async def delete(self, id: str) -> None:
        """Remove a job and its files; the model stops. Raises ApiError 404."""
        job = await self._ask(self._store.delete, id) if ID.fullmatch(id) else None
        if job is None:
            raise _missing(id)
        if job.id in self._calls:
            self._calls[job.id].cancel()
        await asyncio.to_thread(self.files.remove, *job.files)

    async def counts(self) -> dict[str, int]:
        """Return the number of jobs by status, those of all gateways; none while none is known."""
        try:
            return await asyncio.wait_for(self._in_thread(self._store.counts), COUNT_S)
        except (SQLAlchemyError, asyncio.TimeoutError):
            return {}

    async def _dispatch(self) -> None:
        """Run jobs, as many at once as the settings say."""
        free = asyncio.Semaphore(self._settings.job_workers)
        while True:
            await free.acquire()
            job = await self._next()
            self._begin(self._run(job)).add_done_callback(lambda _: free.release())

    async def _next(self) -> StoredJob:
        while True:
            self._added.clear()
            try:
                job = await self._in_thread(self._store.claim, self._owner)
            except SQLAlchemyError as error:
                log.warning("the jobs' database does not answer: %s", one_line(error))
                job = None
            if job is not None:
                return job
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._added.wait(), POLL_S)

    async def _run(self, job: StoredJob) -> None:
        """Run a claimed job to its end, or as long as it is this gateway's."""
        progress = [0]

        def on_progress(step: int, total: int) -> None:
            progress[0] = min(99, 100 * step // max(total, 1))

        call = self._calls[job.id] = asyncio.create_task(run_job(self._context, job, on_progress))
        try:
            while not (await asyncio.wait((call,), timeout=RENEW_S))[0]:
                if not await self._renew(job, progress[0]):
                    return
            if not call.cancelled():
                await self._settle(job, _outcome(job, call))
        finally:
            call.cancel()
            await asyncio.wait((call,))
            if self._calls.get(job.id) is call:
                del self._calls[job.id]

    async def _renew(self, job: StoredJob, progress: int) -> bool:
        try:
            return await self._in_thread(self._store.renew, job, progress)
        except SQLAlchemyError as error:  # the lease may outlast it
            log.warning("job %s: the database does not answer: %s", job.id, one_line(error))
            return True

    async def _settle(self, job: StoredJob, outcome: JobOutcome | Retry) -> None:
        """Write down what became of a job, as soon as the database takes it."""
        while True:
            try:
                await self._write(job, outcome)
                return
            except SQLAlchemyError as error:
                log.warning("job %s: the result cannot be stored: %s", job.id, one_line(error))
                await asyncio.sleep(POLL_S)

    async def _write(self, job: StoredJob, outcome: JobOutcome | Retry) -> None:
        if isinstance(outcome, Retry):
            log.info("job %s waits: %s", job.id, outcome.reason)
            tries = job.tries if outcome.counts else job.tries - 1
            await self._in_thread(self._store.release, job, outcome.wait_s, tries)
            return
        after_s = self._settings.expire_after_s
        if await self._in_thread(self._store.finish, job, after_s, outcome.values):
            over = [name for names in job.media.values() for name in names]
        else:
            # a database that was lost while it answered may have taken the result before
            kept = await self._in_thread(self._store.get, job.id)
            file = outcome.values.get("file")
            over = [file] if file and (kept is None or kept.file != file) else []
        await asyncio.to_thread(self.files.remove, *over)

    async def _sweep(self) -> None:
        """Remove jobs whose time is over, and files that belong to none."""
        after_s = self._settings.expire_after_s
        while True:
            try:
                for job in await self._in_thread(self._store.expire):
                    await asyncio.to_thread(self.files.remove, *job.files)
                old = await asyncio.to_thread(self.files.older_than, after_s)
                known = await self._in_thread(self._store.known, sorted(set(old.values())))
                orphans = [name for name, id in old.items() if id not in known]
                await asyncio.to_thread(self.files.remove, *orphans)
            except (SQLAlchemyError, FilesError, OSError) as error:
                log.warning("old jobs cannot be removed: %s", one_line(error))
            await asyncio.sleep(min(SWEEP_S, max(1.0, after_s / 4)))

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Ask the database on behalf of a caller. Raises ApiError 503 when it does not answer."""
        try:
            return await asyncio.wait_for(self._in_thread(question, *arguments), ANSWER_S)
        except DataError:
            raise invalid("the request holds characters or numbers that no job can keep") from None
        except (SQLAlchemyError, asyncio.TimeoutError) as error:
            log.warning("the jobs' database does not answer: %s", one_line(error))
            raise busy("the jobs' database does not answer; send it again later") from None

    async def _in_thread(self, question: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, question, *arguments)


def _outcome(job: StoredJob, call: "asyncio.Task[JobOutcome | Retry]") -> JobOutcome | Retry:
    """Return what a call ended with. One that crashed the gateway's own code fails."""
    error = call.exception()
    if error is None:
        return call.result()
    log.error("job %s: the gateway failed", job.id, exc_info=error)
    reason = f"the gateway failed: {type(error).__name__}"
    return JobOutcome({"status": FAILED, "error_code": "internal_error", "error_message": reason})


def _full(error: JobsFullError) -> ApiError:
    what, option = ("jobs wait or run", "max_jobs")
    if not error.unfinished:
        what, option = ("jobs are kept", "max_stored_jobs")
    return ApiError(
        429,
        f"{error.count} {what}, as many as are accepted ({option} of the gateway); delete some, "
        "or send it again later",
        code="too_many_jobs",
        headers={"Retry-After": str(FULL_RETRY_S)},
    )


def _missing(id: str) -> ApiError:
    return ApiError(
        404,
        f"there is no video '{id[:80]}': it was never made, was deleted, or has expired",
        param="video_id",
        code="video_not_found",
    )
