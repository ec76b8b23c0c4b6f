# SPDX-License-Identifier: Apache-2.0
"""One run of a job: keywords and files -> the call -> the result's file, or when to try again."""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

from triton_diffusers.client import Result
from triton_diffusers.client.call import Progress
from triton_diffusers.contract import OUTPUT_FORMAT
from triton_diffusers.gateway.calls import generate
from triton_diffusers.gateway.errors import ApiError, busy
from triton_diffusers.gateway.jobs.files import FilesError, JobFiles
from triton_diffusers.gateway.jobs.store import COMPLETED, FAILED, MAX_TRIES, StoredJob
from triton_diffusers.gateway.models import Model, Models
from triton_diffusers.gateway.requests.fields import Asked
from triton_diffusers.gateway.results import MEDIA_TYPES, check_video
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.sizes import KnownSizes

BUSY_WAIT_S = 2.0
AWAY_WAIT_S = 5.0
"""How long a job waits when the model's queue is full, and when the model or its server is away."""

WRITES = 12
"""How often a result is written before it is given up, AWAY_WAIT_S apart: it cost a model's run."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """What the jobs of one gateway are run with."""

    settings: Settings
    models: Models
    files: JobFiles
    sizes: KnownSizes


@dataclass(frozen=True)
class JobOutcome:
    """The columns of a job that ended."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Retry:
    """A job that must run again later. counts: it had begun, which may not happen for ever."""

    wait_s: float
    counts: bool
    reason: str


async def run_job(context: Context, job: StoredJob, on_progress: Progress) -> JobOutcome | Retry:
    """Run a job once and store its result."""
    if job.tries > MAX_TRIES:
        reason = f"given up: started {MAX_TRIES} times, the gateway went away each time"
        return _failed("gave_up", reason)
    asked = Asked(dict(job.keywords), list(job.notes), _size(job))
    try:
        model = await context.models.named(job.model)
    except ApiError as error:
        return _away(context.settings, job, error)
    try:
        for name, stored in job.media.items():
            asked.keywords[name] = [
                await asyncio.to_thread(context.files.read, file) for file in stored
            ]
    except FileNotFoundError:
        return _failed("input_lost", "a file that was sent with the request is no longer stored")
    except FilesError as error:
        return _away(context.settings, job, busy(f"a file of the job cannot be read: {error}"))
    try:
        result = await generate(model, asked, context.settings.timeout_s, on_progress)
        return await _store(context, job, model, asked, result)
    except ApiError as error:
        return _ended(context.settings, job, error)


async def _store(
    context: Context, job: StoredJob, model: Model, asked: Asked, result: Result
) -> JobOutcome:
    """Write the video. Raises ApiError for one that is not what was asked for."""
    file_format = asked.keywords[OUTPUT_FORMAT.name]
    video = await check_video(model, asked, result, context.sizes)
    name = f"{job.id}-{secrets.token_hex(4)}.{file_format}"
    try:
        await _keep_writing(context.files, name, video.content)
    except FilesError:
        return _failed("not_stored", "the video was made, but cannot be stored")
    return JobOutcome(
        {
            "status": COMPLETED,
            "progress": 100,
            "file": name,
            "media_type": MEDIA_TYPES[file_format],
            "seed": result.seeds[0] if result.seeds else None,
            "size": video.size,
            "seconds": video.seconds,
            "notes": video.notes,
        }
    )


async def _keep_writing(files: JobFiles, name: str, content: bytes) -> None:
    """Write a result, again and again while the store fails. Raises FilesError."""
    for _ in range(WRITES - 1):
        try:
            await asyncio.to_thread(files.write, name, content)
        except FilesError as error:
            log.warning("%s cannot be stored: %s", name, error)
            await asyncio.sleep(AWAY_WAIT_S)
        else:
            return
    await asyncio.to_thread(files.write, name, content)


def _ended(settings: Settings, job: StoredJob, error: ApiError) -> JobOutcome | Retry:
    """Tell errors that pass from those that stay."""
    if error.error.code in ("overloaded", "model_not_found"):
        return _away(settings, job, error)
    if error.error.code == "upstream_unavailable" and job.tries < MAX_TRIES:
        return Retry(AWAY_WAIT_S, True, str(error))
    return _failed(error.error.code or error.error.type, str(error))


def _away(settings: Settings, job: StoredJob, error: ApiError) -> JobOutcome | Retry:
    """Wait for a model that is busy, loaded again or restarted: as long as results are kept."""
    if time.time() > job.created_at + settings.expire_after_s:
        return _failed(error.error.code or error.error.type, f"waited too long: {error}")
    wait_s = BUSY_WAIT_S if error.error.code == "overloaded" else AWAY_WAIT_S
    return Retry(wait_s, False, str(error))


def _failed(code: str, message: str) -> JobOutcome:
    return JobOutcome({"status": FAILED, "error_code": code, "error_message": message})


def _size(job: StoredJob) -> tuple[int, int] | None:
    if job.size is None:
        return None
    width, _, height = job.size.partition("x")
    return int(width), int(height)
