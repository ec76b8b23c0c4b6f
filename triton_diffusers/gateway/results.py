# SPDX-License-Identifier: Apache-2.0
"""What a call made: the size and length that its files have, and what to tell of them."""

import asyncio
import io
from dataclasses import dataclass

from PIL import Image

from triton_diffusers.client import Result
from triton_diffusers.contract import AUDIO_FIELDS, FRAME_COUNTS
from triton_diffusers.gateway.errors import ApiError
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import Asked
from triton_diffusers.gateway.sizes import KnownSizes
from triton_diffusers.media.decode import format_of
from triton_diffusers.media.encode import mp4_size

MEDIA_TYPES = {"mp4": "video/mp4", "gif": "image/gif"}
"""output_format -> what HTTP calls it."""


@dataclass(frozen=True)
class VideoFile:
    """A file as the server encoded it. size: "WxH"; seconds: as text."""

    content: bytes
    size: str
    seconds: str
    notes: list[str]


async def check_video(model: Model, asked: Asked, result: Result, sizes: KnownSizes) -> VideoFile:
    """Look at what a call made. Raises ApiError: 400 for another size than was asked for."""
    if not result.media:
        raise ApiError(500, f"'{model.name}' made no video", code="pipeline_failed")
    content = result.media[0]
    size, frames, seconds, has_sound = await asyncio.to_thread(_measure, content)
    warnings = result.info.get("warnings", [])
    fitting = asked.size and (asked.size, mp4_size(*asked.size))
    if fitting and size not in fitting[: 2 if format_of(content) == "mp4" else 1]:
        raise sizes.learn(model, fitting[0], asked.keywords, size, warnings)
    notes = [*asked.notes, *warnings]
    if asked.keywords.get(FRAME_COUNTS[0], frames) != frames:
        notes.append(f"num_frames: {asked.keywords['num_frames']} sent, {frames} made")
    if not has_sound and any(name in result.arrays for name in AUDIO_FIELDS):
        notes.append("the model also made sound, which the video's file does not hold")
    if len(result.media) > 1:
        notes.append(f"{len(result.media)} videos were made; the first is kept")
    return VideoFile(content, f"{size[0]}x{size[1]}", f"{seconds:.6g}", notes)


def _measure(content: bytes) -> tuple[tuple[int, int], int, float, bool]:
    """Return (width, height), the number of frames, seconds, and whether there is sound."""
    if format_of(content) == "gif":
        with Image.open(io.BytesIO(content)) as animation:
            frames = getattr(animation, "n_frames", 1)
            seconds = frames * animation.info.get("duration", 0) / 1000
            return animation.size, frames, seconds, False
    import av  # not for those who never ask for a video

    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        seconds = stream.frames / float(stream.average_rate)
        size = (stream.width, stream.height)
        return size, stream.frames, seconds, bool(container.streams.audio)


def check_size(model: Model, asked: Asked, result: Result, sizes: KnownSizes) -> str | None:
    """Return the pictures' size as "WxH"; refuse where it is not what was asked for.

    What a model made instead is remembered: the same is refused at once the next time.
    """
    if not result.media:
        return None
    made = Image.open(io.BytesIO(result.media[0])).size
    if asked.size is not None and asked.size != made:
        warnings = result.info.get("warnings", [])
        raise sizes.learn(model, asked.size, asked.keywords, made, warnings)
    return f"{made[0]}x{made[1]}"
