# SPDX-License-Identifier: Apache-2.0
"""Answers as server-sent events, with OpenAI's names."""

import asyncio
import base64
import io
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from PIL import Image

from triton_diffusers.contract import OUTPUT_FORMAT, PREVIEW_EVERY
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import ApiError
from triton_diffusers.gateway.fields import Asked
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.schemas import ImageFields
from triton_diffusers.gateway.state import state_of

PING_S = 15.0
"""A comment is sent when nothing else was for so long, so that no proxy gives up."""

Event = dict[str, Any]


async def stream_images(
    request: Request, model: Model, asked: Asked, body: ImageFields, name: str
) -> StreamingResponse:
    """Answer with events `name`.partial_image and `name`.completed.

    What is refused before the first event is answered with its status, as without streaming.
    """
    call = _ImageCall(model, asked, body, name, state_of(request).settings.timeout_s)
    try:
        first = await until_gone(request, call.next())
    except BaseException:
        call.cancel()
        raise
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(call, first), media_type="text/event-stream", headers=headers)


class _ImageCall:
    """A running call whose progress and result are events."""

    def __init__(
        self, model: Model, asked: Asked, body: ImageFields, name: str, timeout_s: float | None
    ):
        self._asked, self._body, self._name, self._model = asked, body, name, model
        self._events: asyncio.Queue[Event | ApiError | None] = asyncio.Queue()
        self._sent = 0
        if model.entry.decoupled and self._partials:
            asked.keywords.setdefault(PREVIEW_EVERY.name, 1)
        on_progress = self._on_progress if body.stream_progress else None
        on_preview = self._on_preview if self._partials else None
        self._task = asyncio.create_task(self._run(timeout_s, on_progress, on_preview))

    @property
    def _partials(self) -> int:
        return self._body.partial_images or 0

    async def next(self) -> Event | None:
        """Return the next event, None after the last. Raises ApiError."""
        event = await self._events.get()
        if isinstance(event, ApiError):
            raise event
        return event

    def cancel(self) -> None:
        """End the call: the model stops."""
        self._task.cancel()

    async def _run(self, timeout_s: float | None, on_progress: Any, on_preview: Any) -> None:
        from triton_diffusers.gateway.images import describe_images

        try:
            result = await generate(self._model, self._asked, timeout_s, on_progress, on_preview)
            images = describe_images(self._model, self._asked, result, "b64_json")
        except ApiError as error:
            self._events.put_nowait(error)
            return
        told = images.model_dump(exclude={"data", "created"}) | self._fields(images.size)
        for data in images.data:
            self._put("completed", b64_json=data.b64_json, usage=None, **told)
        self._events.put_nowait(None)

    def _on_progress(self, step: int, total: int) -> None:
        self._put("progress", step=step, total=total)

    def _on_preview(self, step: int, total: int, pictures: list[Image.Image]) -> None:
        """Send as many previews as were asked for, evenly over the steps."""
        due = step * (self._partials + 1) // max(total, 1)
        if step >= total or self._sent >= min(due, self._partials):
            return
        file_format = self._asked.keywords[OUTPUT_FORMAT.name]
        text = base64.b64encode(_encode(pictures[0], file_format)).decode()
        size = f"{pictures[0].width}x{pictures[0].height}"
        self._put(
            "partial_image", b64_json=text, partial_image_index=self._sent, **self._fields(size)
        )
        self._sent += 1

    def _fields(self, size: str | None) -> Event:
        return {
            "created_at": int(time.time()),
            "size": size,
            "quality": self._body.quality or "auto",
            "background": self._body.background or "auto",
            "output_format": self._asked.keywords[OUTPUT_FORMAT.name],
        }

    def _put(self, kind: str, **event: Any) -> None:
        self._events.put_nowait({"type": f"{self._name}.{kind}", **event})


async def _lines(call: _ImageCall, event: Event | None) -> AsyncIterator[str]:
    try:
        while event is not None:
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            following = asyncio.ensure_future(call.next())
            while not (await asyncio.wait((following,), timeout=PING_S))[0]:
                yield ": still running\n\n"
            event = following.result()
    except ApiError as error:
        yield f"event: error\ndata: {json.dumps({'type': 'error', **error.body})}\n\n"
    finally:
        call.cancel()


def _encode(picture: Image.Image, file_format: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=file_format)
    return file.getvalue()
