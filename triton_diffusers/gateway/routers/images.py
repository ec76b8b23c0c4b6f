# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/generations, /v1/images/edits and /v1/images/variations.

Edits and variations take a form with files, as OpenAI's clients send, or JSON with data: URLs.
Their body is read by hand, since the model that it names says how a form's texts are meant.
"""

import base64
import io
import json
import time
from typing import Any

from fastapi import APIRouter, Request
from PIL import Image

from triton_diffusers.client import Result
from triton_diffusers.contract import OUTPUT_FORMAT
from triton_diffusers.gateway.answers.streaming import EventCall, stream
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import (
    PROMPT,
    Asked,
    mask_by_transparency,
    read_fields,
)
from triton_diffusers.gateway.requests.media import IMAGE_FIELDS
from triton_diffusers.gateway.requests.uploads import BoundedRoute, document, read_request
from triton_diffusers.gateway.results import check_size
from triton_diffusers.gateway.schemas import (
    ImageData,
    ImageEdit,
    ImageFields,
    ImageGeneration,
    Images,
    ImageVariation,
)
from triton_diffusers.gateway.state import GatewayState, state_of

router = APIRouter(tags=["images"], route_class=BoundedRoute)


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
    asked = await read_fields(state.settings, state.sizes, model, body)
    if PROMPT in model.entry.inputs and PROMPT not in asked.keywords:
        raise invalid(f"{PROMPT} is missing: '{model.name}' makes pictures from a text", PROMPT)
    return await answer_images(request, model, asked, body, "image_generation")


@router.post(
    "/v1/images/edits",
    response_model=Images,
    response_model_exclude_none=True,
    responses=STREAMS,
    openapi_extra=document(ImageEdit, files=("image", "mask")),
)
async def edits(request: Request) -> Any:
    """Make pictures from one or more pictures, a text and a mask, as far as the model takes them.

    mask: pixels that are transparent are edited; of a mask without such pixels, the white ones.
    Without a mask the transparent pixels of the picture are edited.
    """
    return await _answer_edit(request, ImageEdit)


@router.post(
    "/v1/images/variations",
    response_model=Images,
    response_model_exclude_none=True,
    responses=STREAMS,
    openapi_extra=document(ImageVariation, files=("image",)),
)
async def variations(request: Request) -> Any:
    """Make pictures like a picture."""
    return await _answer_edit(request, ImageVariation)


async def _answer_edit(request: Request, declared: type[ImageFields]) -> Any:
    state = state_of(request)
    model, body = await read_request(request, declared, "image")
    asked = await read_fields(state.settings, state.sizes, model, body)
    if not any(name in asked.keywords for name in model.media_inputs):
        takes = ", ".join(model.media_inputs) or "none: see POST /v1/images/generations"
        raise invalid(
            f"{IMAGE_FIELDS[0]}: none is sent; media inputs of '{model.name}': {takes}",
            IMAGE_FIELDS[0],
        )
    if declared is ImageEdit:
        await mask_by_transparency(model, asked)
    return await answer_images(request, model, asked, body, "image_edit")


async def answer_images(
    request: Request, model: Model, asked: Asked, body: ImageFields, events: str
) -> Any:
    """Run the call and answer with its pictures: as JSON, or as events named `events`.*."""
    state = state_of(request)
    if body.stream:
        call = ImageEvents(state, model, asked, body, events)
        return await stream(request, call)
    if body.partial_images:
        raise invalid("partial_images has no effect without stream", "partial_images")
    result = await until_gone(request, generate(model, asked, state.settings.timeout_s))
    return describe_images(state, model, asked, result, body.response_format or "b64_json")


def describe_images(
    state: GatewayState, model: Model, asked: Asked, result: Result, response_format: str
) -> Images:
    """Make the JSON answer. Raises ApiError 400 where the size is not what was asked for."""
    file_format = asked.keywords[OUTPUT_FORMAT.name]
    return Images(
        created=int(time.time()),
        data=[image_data(file, file_format, response_format) for file in result.media],
        model=model.name,
        seed=result.seeds[0] if result.seeds else None,
        seeds=result.seeds,
        size=check_size(model, asked, result, state.sizes),
        output_format=file_format,
        seconds=result.info.get("seconds", {}),
        notes=[*asked.notes, *result.info.get("warnings", ())],
    )


def image_data(file: bytes, file_format: str, response_format: str) -> ImageData:
    """Return a picture's file as base64 or as a data: URL."""
    if response_format == "url":
        return ImageData(url=data_url(file, file_format))
    return ImageData(b64_json=base64.b64encode(file).decode())


def data_url(file: bytes, file_format: str) -> str:
    """Return a picture's file as a data: URL."""
    return f"data:image/{file_format};base64,{base64.b64encode(file).decode()}"


class ImageEvents(EventCall):
    """A call whose previews and pictures are events with OpenAI's names."""

    def __init__(
        self, state: GatewayState, model: Model, asked: Asked, body: ImageFields, name: str
    ):
        self._state, self._model, self._asked, self._body = state, model, asked, body
        self._name, self._sent = name, 0
        if self._partials and not model.entry.decoupled:
            asked.notes.append(
                f"no partial images: the entry '{model.name}' was written without --decoupled"
            )
        if body.response_format == "url":
            asked.notes.append("response_format is ignored: events hold b64_json")
        super().__init__(
            model,
            asked,
            state.settings.timeout_s,
            self._on_progress if body.stream_progress else None,
            self._on_preview if self._partials else None,
        )

    @property
    def _partials(self) -> int:
        return self._body.partial_images or 0

    def finish(self, result: Result) -> None:
        """Put an event for each picture."""
        images = describe_images(self._state, self._model, self._asked, result, "b64_json")
        told = images.model_dump(exclude={"data", "created"}) | self._fields(images.size)
        for data in images.data:
            self._put("completed", b64_json=data.b64_json, usage=None, **told)

    def _on_progress(self, step: int, total: int) -> None:
        self._put("progress", step=step, total=total)

    def _on_preview(self, step: int, total: int, pictures: list[Image.Image]) -> None:
        """Send as many previews as were asked for, evenly over the steps."""
        due = step * (self._partials + 1) // max(total, 1)
        if step >= total or self._sent >= min(due, self._partials):
            return
        file = _encode(pictures[0], self._asked.keywords[OUTPUT_FORMAT.name])
        size = f"{pictures[0].width}x{pictures[0].height}"
        self._put(
            "partial_image",
            b64_json=base64.b64encode(file).decode(),
            partial_image_index=self._sent,
            **self._fields(size),
        )
        self._sent += 1

    def _fields(self, size: str | None) -> dict[str, Any]:
        return {
            "created_at": int(time.time()),
            "size": size,
            "quality": self._body.quality or "auto",
            "background": self._body.background or "auto",
            "output_format": self._asked.keywords[OUTPUT_FORMAT.name],
        }

    def _put(self, kind: str, **event: Any) -> None:
        event = {"type": f"{self._name}.{kind}", **event}
        self.put(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n")


def _encode(picture: Image.Image, file_format: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=file_format)
    return file.getvalue()
