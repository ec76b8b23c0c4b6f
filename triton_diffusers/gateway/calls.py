# SPDX-License-Identifier: Apache-2.0
"""A call of a model on behalf of an HTTP request: it ends when its caller goes away."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from triton_diffusers.client import (
    DiffusersClientError,
    InvalidRequest,
    ModelNotFound,
    PipelineError,
    Result,
    ServerUnavailable,
)
from triton_diffusers.client.call import Preview, Progress
from triton_diffusers.gateway.errors import ApiError, from_client, invalid
from triton_diffusers.gateway.middleware.metrics import waiting_for
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import Asked
from triton_diffusers.gateway.sizes import nearest, step_in

T = TypeVar("T")

LOG = logging.getLogger(__name__)

TOO_SMALL = 64
"""A side below which pipelines may fail in their layers rather than refuse."""
FAILED_CALL = "cannot do this call"
"""How the server words a failure over a caller's values."""


async def generate(
    model: Model,
    asked: Asked,
    timeout_s: float | None,
    on_progress: Progress | None = None,
    on_preview: Preview | None = None,
) -> Result:
    """Run a call. Raises ApiError for what the server or the connection to it says."""
    try:
        with waiting_for(model.name):
            return await model.client.generate(
                timeout_s=timeout_s,
                shared_memory=False,
                on_progress=on_progress,
                on_preview=on_preview,
                **asked.keywords,
            )
    except InvalidRequest as error:
        raise _with_nearest_size(error, asked) from None
    except PipelineError as error:
        raise _too_small(error, asked) or from_client(error) from None
    except DiffusersClientError as error:
        if isinstance(error, (ServerUnavailable, ModelNotFound)):
            model.server.doubt()
        raise from_client(error) from None


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when the caller of `request` goes away: the model stops.

    The request's body must have been read. Raises ApiError 499, which nobody receives.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the caller went away", code="cancelled")
    finally:
        await _end(gone, task)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel those that still run and wait for their ends, of which nobody is left to be told."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    for task in running:
        if not task.cancelled() and task.exception() is not None:
            LOG.debug("what was cancelled ended with: %s", task.exception())


def _with_nearest_size(error: InvalidRequest, asked: Asked) -> ApiError:
    """Add the nearest size that works where a pipeline says what sizes must be divisible by."""
    step = step_in(error.message)
    if step is None and FAILED_CALL in error.message and (told := _too_small(error, asked)):
        return told
    if step is None or asked.size is None:
        return _as_sent(from_client(error), asked)
    width, height = nearest(asked.size, step)
    return invalid(f"{error.message} Nearest size: {width}x{height}.", "size")


def _as_sent(error: ApiError, asked: Asked) -> ApiError:
    """Name the field that the caller sent where the server names the input that it became."""
    param = error.error.param
    if param in asked.sent_as:
        field = asked.sent_as[param]
        message = error.error.message.replace(f"input '{param}'", f"field '{field}'")
        return invalid(message, field)
    return error


def _too_small(error: DiffusersClientError, asked: Asked) -> ApiError | None:
    """Word a failed call of a tiny picture, which is its caller's to change."""
    sides = [asked.keywords.get(name) for name in ("width", "height")]
    if not any(isinstance(side, int) and side < TOO_SMALL for side in sides):
        return None
    told = "x".join(map(str, sides))
    return invalid(
        f"size: the call failed at {told}, which may be too small for the model; send a larger "
        f"size: {error.message}",
        "size",
    )
