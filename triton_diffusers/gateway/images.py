# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/generations."""

import base64
import time
from typing import Any

from fastapi import APIRouter, Request

from triton_diffusers.client import Result
from triton_diffusers.client.files import read_image
from triton_diffusers.contract import OUTPUT_FORMAT
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.fields import Asked, read_fields
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.schemas import ImageData, ImageFields, ImageGeneration, Images
from triton_diffusers.gateway.state import state_of
from triton_diffusers.gateway.streaming import stream_images

router = APIRouter(tags=["images"])


EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["data"],
}

STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Pictures; with `stream`, events.",
        "content": {"text/event-stream": {"schema": EVENT}},
    }
}
"""What an endpoint that may stream adds to the OpenAPI document."""


@router.post(
    "/v1/images/generations",
    response_model=Images,
    response_model_exclude_none=True,
    responses=STREAMS,
)
async def generations(request: Request, body: ImageGeneration) -> Any:
    """Make pictures from a text. With `stream` the answer is a stream of events."""
    state = state_of(request)
    model = await state.models.find(body.model, "image")
    return await answer_images(request, model, read_fields(model, body), body, "image_generation")


async def answer_images(
    request: Request, model: Model, asked: Asked, body: ImageFields, events: str
) -> Any:
    """Run the call and answer with its pictures: as JSON, or as events named `events`.*."""
    timeout_s = state_of(request).settings.timeout_s
    if body.stream:
        return await stream_images(request, model, asked, body, events)
    if body.partial_images:
        raise invalid("partial_images has no effect without stream", "partial_images")
    result = await until_gone(request, generate(model, asked, timeout_s))
    return describe_images(model, asked, result, body.response_format or "b64_json")


def describe_images(model: Model, asked: Asked, result: Result, response_format: str) -> Images:
    """Make the JSON answer. Raises ApiError 400 where the size is not what was asked for."""
    file_format = asked.keywords[OUTPUT_FORMAT.name]
    return Images(
        created=int(time.time()),
        data=[image_data(file, file_format, response_format) for file in result.media],
        model=model.name,
        seed=result.seeds[0] if result.seeds else None,
        seeds=result.seeds,
        size=check_size(model, asked, result),
        output_format=file_format,
        seconds=result.info.get("seconds", {}),
        notes=[*asked.notes, *result.info.get("warnings", ())],
    )


def image_data(file: bytes, file_format: str, response_format: str) -> ImageData:
    """Return a picture's file as base64 or as a data: URL."""
    text = base64.b64encode(file).decode()
    if response_format == "url":
        return ImageData(url=f"data:image/{file_format};base64,{text}")
    return ImageData(b64_json=text)


def check_size(model: Model, asked: Asked, result: Result) -> str | None:
    """Return the pictures' size as "WxH"; refuse where it is not what was asked for."""
    if not result.media:
        return None
    width, height = read_image(result.media[0]).size
    if asked.size is not None and asked.size != (width, height):
        raise ApiError(
            400,
            f"size: '{model.name}' cannot make {asked.size[0]}x{asked.size[1]}. "
            f"Nearest size: {width}x{height}.",
            param="size",
        )
    return f"{width}x{height}"
