# SPDX-License-Identifier: Apache-2.0
"""/v1/videos: jobs as OpenAI's, and /v1/videos/sync, whose answer is the video."""

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from triton_diffusers.contract import OUTPUT_FORMAT, SEED
from triton_diffusers.gateway.answers.content import describe_in_headers, document_file, serve_file
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.jobs.store import COMPLETED, FAILED, StoredJob, new_id
from triton_diffusers.gateway.requests.fields import Asked
from triton_diffusers.gateway.requests.uploads import document
from triton_diffusers.gateway.requests.video_fields import draw_seed, read_video_request
from triton_diffusers.gateway.results import MEDIA_TYPES, check_video
from triton_diffusers.gateway.schemas import Video, VideoDeleted, VideoError, VideoFields, VideoList
from triton_diffusers.gateway.state import state_of

router = APIRouter(tags=["videos"])

MAX_JOB_BYTES = 2**18
"""Of a job's inputs as JSON; pictures and videos are files."""

VIDEO_RESPONSE = document_file("The video.", MEDIA_TYPES.values())

BODY = document(VideoFields, files=("input_reference",))


@router.post("/v1/videos", openapi_extra=BODY)
async def create(request: Request) -> Video:
    """Queue a video and answer with the job at once."""
    call = await read_video_request(request)
    model, asked = call.model, call.asked
    draw_seed(model, asked)
    media = {n: asked.keywords.pop(n) for n in model.media_inputs if n in asked.keywords}
    prompt = asked.keywords.get("prompt")
    size = None if asked.size is None else f"{asked.size[0]}x{asked.size[1]}"
    _check_bytes(asked)
    values = {
        "model": model.name,
        "prompt": prompt if isinstance(prompt, str) else None,
        "keywords": asked.keywords,
        "size": size,
        "seconds": None if call.seconds is None else f"{call.seconds:g}",
        "seed": asked.keywords.get(SEED.name),
        "notes": asked.notes,
    }
    return describe(await state_of(request).jobs.add(new_id(), values, media))


@router.post(
    "/v1/videos/sync", response_class=Response, responses=VIDEO_RESPONSE, openapi_extra=BODY
)
async def create_and_wait(request: Request) -> Response:
    """Make a video and answer with it. Whoever goes away stops the model."""
    call = await read_video_request(request)
    model, asked = call.model, call.asked
    state = state_of(request)
    result = await until_gone(request, generate(model, asked, state.settings.timeout_s))
    video = await check_video(model, asked, result, state.sizes)
    headers = describe_in_headers(model, result, video.notes)
    headers |= {"X-Size": video.size, "X-Seconds": video.seconds}
    kind = MEDIA_TYPES[asked.keywords[OUTPUT_FORMAT.name]]
    return Response(video.content, media_type=kind, headers=headers)


@router.get("/v1/videos")
async def list_videos(
    request: Request,
    after: Annotated[str | None, Query(description="the last id of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> VideoList:
    """List the jobs by when they were made."""
    jobs, has_more = await state_of(request).jobs.page(after, limit, order)
    return VideoList(
        data=[describe(job) for job in jobs],
        first_id=jobs[0].id if jobs else None,
        last_id=jobs[-1].id if jobs else None,
        has_more=has_more,
    )


@router.get("/v1/videos/{video_id}")
async def get_video(request: Request, video_id: str) -> Video:
    """Tell how far a job is."""
    return describe(await state_of(request).jobs.get(video_id))


@router.get(
    "/v1/videos/{video_id}/content",
    response_class=Response,
    responses={
        **VIDEO_RESPONSE,
        206: {"description": "A part."},
        416: {"description": "No such part."},
    },
)
async def get_content(request: Request, video_id: str, variant: str = "video") -> Response:
    """Return the video of a completed job, or the part that a Range header names."""
    if variant != "video":
        raise invalid(f"variant: '{variant[:40]}' is not made; accepted: video", "variant")
    jobs = state_of(request).jobs
    job = await jobs.get(video_id)
    if job.status == FAILED:
        raise ApiError(
            409, f"the video failed, there is no content: {job.error_message}", code="video_failed"
        )
    if job.status != COMPLETED or job.file is None:
        raise ApiError(
            409,
            f"the video is {job.status} ({job.progress} %); get it when its status is completed",
            code="video_not_ready",
        )
    return await serve_file(request, jobs.files, job.file, str(job.media_type))


@router.delete("/v1/videos/{video_id}")
async def delete_video(request: Request, video_id: str) -> VideoDeleted:
    """Remove a job and its video; if it runs, the model stops."""
    await state_of(request).jobs.delete(video_id)
    return VideoDeleted(id=video_id)


def _check_bytes(asked: Asked) -> None:
    """Refuse inputs that no database should hold thousands of, and no page a hundred of."""
    size = len(json.dumps([asked.keywords, asked.notes]))
    if size > MAX_JOB_BYTES:
        raise ApiError(
            413,
            f"the inputs, files left out, have {size} bytes as JSON; a job keeps at most "
            f"{MAX_JOB_BYTES}: send shorter ones, or call /v1/videos/sync",
            code="body_too_large",
        )


def describe(job: StoredJob) -> Video:
    """Return a job as OpenAI's video object."""
    failed = job.status == FAILED
    return Video(
        id=job.id,
        model=job.model,
        status=job.status,
        progress=job.progress,
        created_at=int(job.created_at),
        completed_at=None if job.completed_at is None else int(job.completed_at),
        expires_at=None if job.expires_at is None else int(job.expires_at),
        prompt=job.prompt,
        size=job.size,
        seconds=job.seconds,
        seed=job.seed,
        media_type=job.media_type,
        error=VideoError(code=job.error_code or "", message=job.error_message or "")
        if failed
        else None,
        notes=job.notes,
    )
