# SPDX-License-Identifier: Apache-2.0
"""The bodies of requests for videos and of their answers: OpenAI's, vLLM-Omni's, and ours."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from triton_diffusers.gateway.schemas import Fields, Number, Whole, _no_flag

Count = Annotated[int, BeforeValidator(_no_flag), Field(ge=1)]
Positive = Annotated[float, BeforeValidator(_no_flag), Field(gt=0, allow_inf_nan=False)]


class VideoFields(Fields):
    """Body of POST /v1/videos and /v1/videos/sync, a form or JSON."""

    prompt: str | None = Field(None, description="needed where the model takes one")
    seconds: Positive | None = Field(
        None, description="length; becomes num_frames by the rate that the video plays at"
    )
    size: str | None = Field(None, description='"WIDTHxHEIGHT" or "auto"')
    width: Count | None = None
    height: Count | None = None
    num_frames: Count | None = None
    fps: Positive | None = Field(None, description="frames a second")
    guidance_scale_2: Number | None = None
    strength: Number | None = None
    max_sequence_length: Whole | None = None
    n: Count | None = Field(None, description="1: a job is one video")
    output_format: Literal["mp4", "gif"] | None = Field(None, description="default: mp4")
    quality: str | None = None
    input_reference: Any = Field(
        None, description="a picture or video: a file in a form, a data: URL or base64 in JSON"
    )
    image_reference: Any = Field(None, description='the same as {"image_url": "data:..."}')


class VideoError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class Video(BaseModel):
    """OpenAI's video object, and what is ours: seed, notes, media_type."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(description="0-100; from models that tell their steps, else 0 or 100")
    created_at: int
    completed_at: int | None
    expires_at: int | None = Field(description="when the video is removed")
    prompt: str | None
    size: str | None = Field(description="as asked for; of a completed one, as made")
    seconds: str | None = Field(description="as asked for; of a completed one, as made")
    seed: int | None = Field(description="send it again for the same video")
    media_type: str | None
    error: VideoError | None
    remixed_from_video_id: None = None
    notes: list[str] = Field(description="what was ignored or chosen, and the server's warnings")


class VideoList(BaseModel):
    """A page of jobs."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """What DELETE answers."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True
