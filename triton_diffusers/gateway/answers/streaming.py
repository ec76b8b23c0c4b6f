# SPDX-License-Identifier: Apache-2.0
"""Answers as server-sent events: a running call whose progress and result are lines of a stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from triton_diffusers.client import Result
from triton_diffusers.client.call import Preview, Progress
from triton_diffusers.contract import PREVIEW_EVERY
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import ApiError
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import Asked

PING_S = 15.0
"""A comment is sent when nothing else was for so long, so that no proxy gives up."""


class EventCall:
    """A call that runs while its events are sent. `finish` makes events of the result."""

    last = ""
    """What ends a stream that went well."""

    def __init__(
        self,
        model: Model,
        asked: Asked,
        timeout_s: float | None,
        on_progress: Progress | None = None,
        on_preview: Preview | None = None,
    ):
        if on_preview is not None and PREVIEW_EVERY.name in model.entry.inputs:
            asked.keywords.setdefault(PREVIEW_EVERY.name, 1)
        self._events: asyncio.Queue[str | ApiError | None] = asyncio.Queue()
        work = generate(model, asked, timeout_s, on_progress, on_preview)
        self._task = asyncio.create_task(self._run(work))

    def finish(self, result: Result) -> None:
        """Put the events of the result. Raises ApiError."""
        raise NotImplementedError

    def put(self, event: str) -> None:
        """Send an event, as the lines that it is on the wire."""
        self._events.put_nowait(event)

    async def next(self) -> str | None:
        """Return the next event, None after the last. Raises ApiError."""
        event = await self._events.get()
        if isinstance(event, ApiError):
            raise event
        return event

    def cancel(self) -> None:
        """End the call: the model stops."""
        self._task.cancel()

    async def _run(self, work: Any) -> None:
        try:
            self.finish(await work)
        except ApiError as error:
            self._events.put_nowait(error)
        except Exception as error:  # whoever waits for the next event must hear of it
            self._events.put_nowait(
                ApiError(500, f"the gateway failed: {type(error).__name__}", code="internal_error")
            )
            raise
        else:
            self._events.put_nowait(self.last or None)
            self._events.put_nowait(None)


async def stream(request: Request, call: EventCall) -> StreamingResponse:
    """Answer with a call's events; the call ends when its caller goes away.

    What is refused before the first event is answered with its status, as without streaming.
    """
    try:
        first = await until_gone(request, call.next())
    except BaseException:
        call.cancel()
        raise
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return _Stream(call, first, headers)


class _Stream(StreamingResponse):
    """The response; it cancels the call also where it ends before its first line was sent."""

    def __init__(self, call: EventCall, first: str | None, headers: dict[str, str]):
        super().__init__(_lines(call, first), media_type="text/event-stream", headers=headers)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.cancel()


async def _lines(call: EventCall, event: str | None) -> AsyncIterator[str]:
    following: asyncio.Future[str | None] | None = None
    try:
        while event is not None:
            yield event
            following = asyncio.ensure_future(call.next())
            while not (await asyncio.wait((following,), timeout=PING_S))[0]:
                yield ": still running\n\n"
            event = following.result()
    except ApiError as error:
        yield f"event: error\ndata: {json.dumps({'type': 'error', **error.body})}\n\n"
    finally:
        if following is not None:
            following.cancel()
