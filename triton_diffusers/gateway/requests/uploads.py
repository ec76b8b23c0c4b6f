# SPDX-License-Identifier: Apache-2.0
"""Bodies that may be a form or JSON -> fields by name, typed as the model's inputs are.

A form carries texts and files: a file becomes bytes, `name[]` and repeated names a list,
`name[key]` an object, as OpenAI's clients send them.
"""

import json
import re
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.media import check_upload
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.state import state_of

FORM = "multipart/form-data"
FORMS = (FORM, "application/x-www-form-urlencoded")
JSON = "application/json"

MAX_FILES = 64
MAX_FIELDS = 256

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
    fields = await read_body(request, state.settings)
    model = await state.models.find(model_name(fields), makes)
    if is_form(request):
        fields = read_texts(model, fields, declared)
    return model, read_as(declared, fields)


async def read_body(request: Request, settings: Settings) -> dict[str, Any]:
    """Return the fields of a form or of a JSON object.

    Raises ApiError: 400 for a broken body, 413 for a file that is too large, 415 for a body of
    another type.
    """
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    try:
        if kind in FORMS:
            return await _read_form(request, settings)
        if kind == JSON or kind.endswith("+json"):
            return _read_json(await request.body())
    except ClientDisconnect:
        raise ApiError(499, "the caller went away", code="cancelled") from None
    except UnicodeError as error:  # codecs that a form's charset may name, such as punycode
        raise invalid(f"the form's charset does not fit it ({error}); send UTF-8") from None
    sent = f"a body of type '{kind}'" if kind else "a body without Content-Type"
    raise ApiError(415, f"{sent}; send {FORM} or {JSON}", code="unsupported_media_type")


def is_form(request: Request) -> bool:
    """Tell whether a body carries texts where JSON has types."""
    return request.headers.get("Content-Type", "").lower().startswith(FORMS)


def model_name(fields: dict[str, Any]) -> str | None:
    """Return the model that a body names. Raises ApiError 400 where that is no text."""
    name = fields.get("model")
    if name is None or isinstance(name, str):
        return name
    raise invalid("model: send the name of one model", "model")


def read_as(body: type[Body], fields: dict[str, Any]) -> Body:
    """Check the fields against a body's declaration; refusals are worded as FastAPI's own."""
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(
            [detail | {"loc": ("body", *detail["loc"])} for detail in error.errors()]
        ) from None


def read_texts(model: Model, fields: dict[str, Any], declared: type[BaseModel]) -> dict[str, Any]:
    """Turn a form's texts into what the model's inputs of these names take.

    declared: its own fields are left to it. Raises ApiError 400 naming the field.
    """
    return {
        name: value if name in declared.model_fields else _read_text(model, name, value)
        for name, value in fields.items()
    } | {
        name: {
            # a declared object holds inputs, another one is an argument of the pipeline
            key: _read_text(model, key, text) if name in declared.model_fields else _as_json(text)
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
    content = {FORM: {"schema": as_form}, JSON: {"schema": as_json}}
    return {"requestBody": {"required": True, "content": content}}


async def _read_form(request: Request, settings: Settings) -> dict[str, Any]:
    text_bytes = settings.max_body_bytes  # a file as base64 is refused as a file
    fields: dict[str, Any] = {}
    async with request.form(
        max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=text_bytes
    ) as form:
        for name, value in form.multi_items():
            plain = name.removesuffix("[]")
            if isinstance(value, UploadFile):
                check_upload(settings, plain, value.size or 0)
                _add(fields, name, await value.read())
            else:
                _add(fields, name, value)
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


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise invalid(f"the body is a JSON {type(fields).__name__}; send an object")
    return fields


def _read_text(model: Model, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_read_text(model, name, item) for item in value]
    if not isinstance(value, str):
        return value
    tensor = model.entry.inputs.get(name)
    if tensor is None or tensor.data_type == "TYPE_STRING" or model.entry.is_media(name):
        is_list = tensor is not None and tensor.dims == (-1,) and value.strip() == "[]"
        return _read_structure(value) if tensor is None or is_list else value
    if len(tensor.dims) == 1 and tensor.dims != (1,) and value[:1] == "[":
        return _read_structure(value)
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


def _as_json(value: Any) -> Any:
    """Read a text of an object as JSON: a number, a flag, a list; another text is itself."""
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    try:
        found = json.loads(value, parse_constant=str) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return value if isinstance(found, str) else found


def _read_structure(text: str) -> Any:
    """Read a JSON object or list; another text is itself."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
