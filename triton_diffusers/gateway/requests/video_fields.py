# SPDX-License-Identifier: Apache-2.0
"""A request for a video -> the keywords of a call: its length, the pictures it starts from."""

import io
import math
import re
import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from PIL import Image, UnidentifiedImageError

from triton_diffusers.client.errors import DiffusersClientError, InvalidRequest
from triton_diffusers.client.request import build_inputs
from triton_diffusers.contract import DRAWN_SEEDS, FPS, FRAME_COUNTS, SEED, VIDEO_FORMATS
from triton_diffusers.gateway.errors import from_client, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import (
    PROMPT,
    Asked,
    read_fields,
    refuse_several,
    refuse_unknown,
)
from triton_diffusers.gateway.requests.media import read_media
from triton_diffusers.gateway.requests.uploads import read_request
from triton_diffusers.gateway.schemas import VideoFields
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.state import state_of
from triton_diffusers.media.decode import format_of

REFERENCES = ("input_reference", "image_reference")
"""Fields that hold a picture or a video; which of the model's inputs it is, its content says."""

RATES = (FPS.name, "frame_rate")

MAX_FRAMES = 2**31

VIDEO_INPUT = re.compile(r"(^|_)video(_|$)")


@dataclass(frozen=True)
class VideoCall:
    """A call that makes a video. seconds: the length, where it was asked for in seconds."""

    model: Model
    asked: Asked
    seconds: float | None


async def read_video_request(request: Request) -> VideoCall:
    """Read a body. Raises ApiError: 404 for an unknown model, 400 for what it cannot take."""
    state = state_of(request)
    model, body = await read_request(request, VideoFields, "video")
    asked = await read_fields(state.settings, state.sizes, model, body, VIDEO_FORMATS[0])
    _set_rate(model, asked)
    seconds = await _set_length(model, asked)
    await _set_references(state.settings, model, asked)
    _check(model, asked)
    await refuse_unknown(model, asked)
    return VideoCall(model, asked, seconds)


def draw_seed(model: Model, asked: Asked) -> None:
    """Draw a seed where none was sent, as the server would: a job that is run twice repeats."""
    if SEED.name not in asked.keywords and SEED.name not in model.call_kwargs:
        asked.keywords[SEED.name] = secrets.randbelow(DRAWN_SEEDS)


async def play_rate(model: Model, keywords: dict[str, Any]) -> float | None:
    """Return how many frames a second the video will have: as sent, else as the server says."""
    for told in (keywords.get(name) for name in RATES):
        if isinstance(told, int | float) and 0 < told < math.inf:
            return float(told)
    try:
        told = (await model.client.probe()).get(FPS.name)
    except DiffusersClientError as error:
        raise from_client(error) from None
    return float(told) if isinstance(told, int | float) else None


def _set_rate(model: Model, asked: Asked) -> None:
    """Let a pipeline that is told how fast its video plays know the rate of the file."""
    fps = asked.keywords.get(FPS.name)
    if fps is not None and "frame_rate" in {*model.entry.inputs} - {*asked.keywords}:
        asked.set("frame_rate", fps, FPS.name)
        asked.notes.append(f"fps: sent as frame_rate={fps:g} too, which the model is told")


async def _set_length(model: Model, asked: Asked) -> float | None:
    """Turn `seconds` into a number of frames; return it."""
    if "seconds" in model.entry.inputs or "seconds" not in asked.keywords:
        return None
    seconds: float = asked.keywords.pop("seconds")
    name = next((name for name in FRAME_COUNTS if name in model.entry.inputs), None)
    if name is None:
        raise invalid(
            f"seconds: '{model.name}' makes videos of one length; leave it out. "
            f"Accepted: {', '.join(model.accepted)}.",
            "seconds",
        )
    fps = await play_rate(model, asked.keywords)
    if fps is None:
        raise invalid(
            f"seconds: '{model.name}' does not tell how many frames a second it makes; "
            f"send fps too, or {name} instead",
            "seconds",
        )
    frames = max(1, round(min(seconds * fps, MAX_FRAMES)))  # which the server refuses
    asked.set(name, frames, "seconds")
    asked.notes.append(f"seconds: {seconds:g} at {fps:g} frames a second, sent as {name}={frames}")
    return seconds


async def _set_references(settings: Settings, model: Model, asked: Asked) -> None:
    """Give the pictures and videos to start from to the inputs that they are for."""
    for name in REFERENCES:
        if name not in asked.keywords or name in model.entry.inputs:
            continue
        files = await read_media(settings, name, asked.keywords.pop(name))
        target = _reference_input(model, name, files)
        if target in asked.keywords:
            raise invalid(f"{name} and {target} are the same input: send one of them", name)
        asked.keywords[target] = files
        asked.sent_as[target] = name


def _reference_input(model: Model, name: str, files: list[bytes]) -> str:
    """Return the input that a picture, or a video, is for."""
    kind = "video" if any(_is_video(file) for file in files) else "image"
    fitting = [n for n in model.media_inputs if bool(VIDEO_INPUT.search(n)) == (kind == "video")]
    fitting = [n for n in fitting if len(model.entry.inputs[n].dims) == 4 and "mask" not in n]
    if kind in fitting or len(fitting) == 1:
        return kind if kind in fitting else fitting[0]
    takes = f"Its media inputs: {', '.join(model.media_inputs)}." if model.media_inputs else ""
    raise invalid(f"{name}: '{model.name}' takes no {kind} to start from. {takes}".strip(), name)


def _is_video(file: bytes) -> bool:
    if format_of(file) == "mp4":
        return True
    try:
        return bool(getattr(Image.open(io.BytesIO(file)), "is_animated", False))
    except UnidentifiedImageError:
        return True  # no picture: another container, which the server reads or refuses
    except Exception:  # Pillow's readers raise whatever a broken file leads them to
        return False


def _check(model: Model, asked: Asked) -> None:
    """Refuse what can be told without running the model."""
    refuse_several(asked, "a job is one video")
    if PROMPT in {*model.entry.inputs} - {*asked.keywords, *model.call_kwargs}:
        raise invalid(f"{PROMPT} is missing: '{model.name}' makes videos from a text", PROMPT)
    for name, tensor in model.entry.inputs.items():
        if not tensor.optional and name not in asked.keywords and name not in model.call_kwargs:
            raise invalid(f"{name} is missing: '{model.name}' requires it", name)
    try:
        build_inputs(model.entry, asked.keywords)
    except InvalidRequest as error:
        raise from_client(error) from None
