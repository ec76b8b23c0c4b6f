# SPDX-License-Identifier: Apache-2.0
"""Bodies that may be a form or JSON -> fields by name, typed as the model's inputs are.

A form carries texts and files: a file becomes bytes, `name[]` and repeated names a list,
`name[key]` an object, as OpenAI's clients send them.
"""

import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.bodies import (
    MULTIPART,
    URLENCODED,
    parse,
    read_form,
    read_json,
)
from triton_diffusers.gateway.requests.complexity import TooComplexError, load_json
from triton_diffusers.gateway.requests.media import check_upload
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.state import state_of

FORMS = (MULTIPART, URLENCODED)
JSON = "application/json"

KEYED = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]((?:\[\])?)")

UPLOAD = {"type": "string", "format": "binary"}

FLAGS = {"true": True, "1": True, "false": False, "0": False}

Body = TypeVar("Body", bound=BaseModel)


async def read_request(request: Request, declared: type[Body], makes: str) -> tuple[Model, Body]:
    """Return the model that a body names, and the body; a form's texts as that model takes them.

    makes: what the endpoint answers with, such as "image".
    Raises ApiError: 404 for an unknown model, 400 for what is not as declared, and as read_body.
    """
    state = state_of(request)
    content = await _read_all(request)
    fields = await read_body(request, content, state.settings)
    model = await state.models.find(model_name(fields), makes)

    def read_fields() -> Body:
        texts = read_texts(model, fields, declared, state.settings) if is_form(request) else fields
        return read_as(declared, texts, state.settings)

    return model, await parse(len(content), read_fields)


async def read_body(request: Request, content: bytes, settings: Settings) -> dict[str, Any]:
    """Return the fields of a form or of a JSON object.

    Raises ApiError: 400 for a broken body, 413 for a file that is too large, 415 for a body of
    another type.
    """
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in FORMS:
        return await _read_form(request, content, settings)
    if kind == JSON or kind.endswith("+json"):
        fields = await read_json(content, settings)
        if not isinstance(fields, dict):
            raise invalid(f"the body is a JSON {type(fields).__name__}; send an object")
        return fields
    sent = f"a body of type '{kind}'" if kind else "a body without Content-Type"
    raise ApiError(415, f"{sent}; send {MULTIPART} or {JSON}", code="unsupported_media_type")


def is_form(request: Request) -> bool:
    """Tell whether a body carries texts where JSON has types."""
    return request.headers.get("Content-Type", "").lower().startswith(FORMS)


def model_name(fields: dict[str, Any]) -> str | None:
    """Return the model that a body names. Raises ApiError 400 where that is no text."""
    name = fields.get("model")
    if name is None or isinstance(name, str):
        return name
    raise invalid("model: send the name of one model", "model")


def read_as(body: type[Body], fields: dict[str, Any], settings: Settings) -> Body:
    """Check the fields against a body's declaration; refusals are worded as FastAPI's own."""
    context = {"max_json_values": settings.max_json_values}
    try:
        return body.model_validate(fields, context=context)
    except ValidationError as error:
        raise RequestValidationError(
            [detail | {"loc": ("body", *detail["loc"])} for detail in error.errors()]
        ) from None


def read_texts(
    model: Model, fields: dict[str, Any], declared: type[BaseModel], settings: Settings
) -> dict[str, Any]:
    """Turn a form's texts into what the model's inputs of these names take.

    declared: its own fields are left to it. Raises ApiError 400 naming the field.
    """
    read = partial(_read_text, settings, model)
    return {
        name: value if name in declared.model_fields else read(name, value)
        for name, value in fields.items()
    } | {
        name: {
            # a declared object holds inputs, another one is an argument of the pipeline
            key: read(key, text) if name in declared.model_fields else _as_json(settings, key, text)
            for key, text in value.items()
        }
        for name, value in fields.items()
        if isinstance(value, dict)
    }


def document(body: type[BaseModel], files: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the part of the OpenAPI document that says what a body read here holds.

    files: the fields that a form carries as files.
    """
    as_json = body.model_json_schema()
    uploads = {name: {"type": "array", "items": UPLOAD} for name in files}
    as_form = as_json | {"properties": as_json["properties"] | uploads}
    content = {MULTIPART: {"schema": as_form}, JSON: {"schema": as_json}}
    return {"requestBody": {"required": True, "content": content}}


async def _read_all(request: Request) -> bytes:
    """Return the body, which the request does not keep."""
    try:
        return b"".join([part async for part in request.stream()])
    except ClientDisconnect:
        raise ApiError(499, "the caller went away", code="cancelled") from None


async def _read_form(request: Request, content: bytes, settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    form = await read_form(request.headers, content, settings)
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                check_upload(settings, name.removesuffix("[]"), value.size or 0)
                _add(fields, name, await value.read())
            else:
                _add(fields, name, value)
    finally:
        await form.close()
    return fields


def _add(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add a part; those of a list and of an object are gathered."""
    if keyed := KEYED.fullmatch(name):
        held = fields.setdefault(keyed[1], {})
        if not isinstance(held, dict):
            raise invalid(f"'{keyed[1]}' is sent twice: whole and by its keys", keyed[1])
        _add(held, keyed[2] + keyed[3], value)
    elif name.endswith("[]") or name in fields:
        plain = name.removesuffix("[]")
        held = fields.get(plain, [])
        fields[plain] = [*held, value] if isinstance(held, list) else [held, value]
    else:
        fields[name] = value


def _read_text(settings: Settings, model: Model, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_read_text(settings, model, name, item) for item in value]
    if not isinstance(value, str):
        return value
    tensor = model.entry.inputs.get(name)
    if tensor is None or tensor.data_type == "TYPE_STRING" or model.entry.is_media(name):
        is_list = tensor is not None and tensor.dims == (-1,) and value.strip() == "[]"
        return _read_structure(settings, name, value) if tensor is None or is_list else value
    if len(tensor.dims) == 1 and tensor.dims != (1,) and value[:1] == "[":
        return _read_structure(settings, name, value)
    try:
        return _read_number(tensor.data_type, value)
    except (ValueError, KeyError):
        kind = {"TYPE_BOOL": "true or false", "TYPE_INT64": "a whole number"}
        wanted = kind.get(tensor.data_type, "a number")
        raise invalid(f"{name}: {value[:60]!r}; '{model.name}' takes {wanted}", name) from None


def _read_number(data_type: str, text: str) -> Any:
    if data_type == "TYPE_BOOL":
        return FLAGS[text.strip().lower()]
    return int(text) if "INT" in data_type else float(text)


def _as_json(settings: Settings, name: str, value: Any) -> Any:
    """Read a text of an object as JSON: a number, a flag, a list; another text is itself."""
    if isinstance(value, list):
        return [_as_json(settings, name, item) for item in value]
    if not isinstance(value, str) or value[:1] in ("{", "["):
        return _read_structure(settings, name, value) if isinstance(value, str) else value
    try:
        found = json.loads(value, parse_constant=str)
    except ValueError:
        return value
    return value if isinstance(found, str) else found


def _read_structure(settings: Settings, name: str, text: str) -> Any:
    """Read a JSON object or list; another text is itself."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return load_json(text, settings.max_json_values)
    except TooComplexError as error:
        raise invalid(f"{name}: it has {error}", name, "body_too_complex") from None
    except (ValueError, RecursionError):
        return text


class _BoundedRequest(Request):
    async def json(self) -> Any:
        return await read_json(await self.body(), state_of(self).settings)


class BoundedRoute(APIRoute):
    """A route whose JSON body, which FastAPI reads, is read by read_json()."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a request that reads JSON here."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request.scope, request.receive))

        return bounded
