# SPDX-License-Identifier: Apache-2.0
"""What the gateway refuses or fails with, as OpenAI's error objects.

400 bad input   401 no key   403 another site's page   404 no such model or path
405 wrong method   408 slow body   413 too large   431 large head
429 and 503 with Retry-After: the gateway, the model's queue is full
499 the caller went away   500 the pipeline failed   502 no tritonserver   504 timed out
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from triton_diffusers.client import errors as client_errors
from triton_diffusers.errors import one_line

RETRY_AFTER_S = 1
NO_RETRY = {"x-should-retry": "false"}
"""Keeps OpenAI's clients from running at once again what took long and failed."""


class ErrorObject(BaseModel):
    """OpenAI's error object. param: the field it is about; code: a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorObject


MAX_MESSAGE = 2000
"""Characters of a message, which may quote what was sent; of longer ones the middle is left out."""
MAX_PARAM = 200


class ApiError(Exception):
    """An answer that is no success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.error = ErrorObject(
            message=_shorten(message, MAX_MESSAGE),
            type=TYPES[status],
            param=param and _shorten(param, MAX_PARAM),
            code=code,
        )
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        return {"error": self.error.model_dump()}

    @property
    def response(self) -> Response:
        """The answer. It is ASCII: what it quotes may be no valid Unicode."""
        content = json.dumps(self.body)
        return Response(content, self.status, self.headers, media_type="application/json")


def _shorten(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


MEANINGS = {
    400: ("invalid_request_error", "the request as sent cannot be served; `param` names the field"),
    401: ("authentication_error", "no API key, or one that is not accepted"),
    403: ("permission_error", "the request comes from another site's page, or for a foreign Host"),
    404: ("not_found_error", "no such model, job or path"),
    405: ("invalid_request_error", "another method is needed"),
    408: ("timeout_error", "the body came too slowly"),
    409: ("conflict_error", "the job is not finished, or has failed"),
    413: ("invalid_request_error", "the body, or a file in it, is larger than the limit"),
    415: ("invalid_request_error", "the content type is none that is accepted here"),
    416: ("invalid_request_error", "the video has no such part as `Range` asks for"),
    429: ("rate_limit_error", "as many requests or jobs as may; `Retry-After` says when to retry"),
    431: ("invalid_request_error", "the head of the request is larger than the limit"),
    499: ("cancelled_error", "the caller went away; nobody receives it, the metrics show it"),
    500: ("server_error", "the pipeline failed, in its own words, or the gateway did"),
    502: ("server_error", "no tritonserver answers, or not the one that has the model"),
    503: ("server_error", "the model's queue is full, or it is loading; with `Retry-After`"),
    504: ("timeout_error", "the call took longer than `timeout_s`; the model was stopped"),
}
"""Status -> OpenAI's word for the kind of error, and what it means."""

TYPES = {status: kind for status, (kind, _) in MEANINGS.items()}
"""Status -> OpenAI's word for the kind of error."""


CLOSED = "the client was closed"
"""How the client words a call that its own end cut off."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a refusal of the request as sent."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str, status: int = 503) -> ApiError:
    """Return a refusal that asks to send the same again later."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(status, message, code="overloaded", headers=headers)


def from_client(error: client_errors.DiffusersClientError) -> ApiError:
    """Return what a failed call of a model means to the caller."""
    text = error.message
    match error:
        case client_errors.InvalidRequest():
            return invalid(text, _named_input(text))
        case client_errors.ServerBusy():
            return busy(text)
        case client_errors.ModelNotFound():
            return ApiError(404, text, param="model", code="model_not_found")
        case client_errors.ServerUnavailable():
            return ApiError(502, text, code="upstream_unavailable")
        case client_errors.Cancelled() if text.startswith(CLOSED):
            return busy("the gateway is being stopped; send it to another one, or later")
        case client_errors.Cancelled():
            return ApiError(504, text, code="timeout", headers=NO_RETRY)
        case _:
            return ApiError(500, text, code="pipeline_failed", headers=NO_RETRY)


def install(app: FastAPI) -> None:
    """Answer every error of the app with an error object."""
    app.add_exception_handler(ApiError, _answer(_from_api))
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(client_errors.DiffusersClientError, _answer(from_client))
    app.add_exception_handler(Exception, _answer(_from_anything))


def _answer(convert: Callable[[Any], ApiError]) -> Callable[[Request, Any], Awaitable[Any]]:
    async def answer(request: Request, error: Any) -> Response:
        return convert(error).response

    return answer


async def respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error outside of the app's own handlers."""
    await error.response(scope, receive, send)


async def _answer_validation(request: Request, error: Any) -> Response:
    api = _from_validation(error)
    sent = request.headers.get("content-type", "")
    # FastAPI hands on a body of another type as a text
    if error.errors()[0]["type"] == "model_attributes_type" and "json" not in sent:
        told = f"the content type is '{sent}'; send 'Content-Type: application/json'"
        api = ApiError(415, told, code="unsupported_media_type")
    return api.response


async def _answer_http(request: Request, error: Any) -> Response:
    return _from_http(request, error).response


def _from_api(error: ApiError) -> ApiError:
    return error


def _from_validation(error: RequestValidationError) -> ApiError:
    """Word the first of pydantic's complaints."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    param = ".".join(where) or None
    if first["type"] == "json_invalid":
        return invalid(f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    message = first["msg"].removeprefix("Value error, ")
    if param is None:
        return invalid(f"the body: {message}; send a JSON object")
    return invalid(f"{param}: {message}", param)


def _from_http(request: Request, error: HTTPException) -> ApiError:
    """Word what Starlette and FastAPI refuse by themselves."""
    status = error.status_code if error.status_code in TYPES else 400
    if isinstance(error.__cause__, ApiError):  # FastAPI wraps what reading a body raises
        return error.__cause__
    message, path, code = str(error.detail), request.url.path, None
    if status == 404:
        message, code = f"there is nothing at {path}; GET /openapi.json lists what is", "not_found"
    elif status == 405:
        accepted = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not accepted at {path}; send {accepted}"
    elif status == 413:
        code = "body_too_large"
    elif error.__cause__ is not None:
        message = f"the body cannot be read: {one_line(error.__cause__)}"
    return ApiError(status, message, code=code, headers=error.headers)


def _from_anything(error: Exception) -> ApiError:
    return ApiError(500, f"the gateway failed: {type(error).__name__}", code="internal_error")


def _named_input(text: str) -> str | None:
    """Return the name that a refusal quotes first, if it quotes one."""
    before, quote, rest = text.partition("'")
    name, closed, _ = rest.partition("'")
    if quote and closed and name.isidentifier() and before.strip() in ("input", "argument"):
        return name
    return None
