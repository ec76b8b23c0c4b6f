# SPDX-License-Identifier: Apache-2.0
"""Keywords of `generate` -> the input tensors of a request."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.media import encode_files, encode_media
from triton_diffusers.client.values import describe, encode_value
from triton_diffusers.contract import EXTRA, is_reserved, reserved_hint
from triton_diffusers.errors import near_miss, unknown
from triton_diffusers.media.pixels import Array


def build_inputs(entry: ServedEntry, keywords: Mapping[str, Any]) -> dict[str, Array]:
    """Turn keywords into input tensors by name; None is not sent.

    A keyword that is no input joins the JSON object in `extra`, where the server knows it or
    refuses it.
    Raises InvalidRequest for a value that its input cannot carry.
    """
    arrays: dict[str, Array] = {}
    others: dict[str, Any] = {}
    for name, value in keywords.items():
        if value is None or name == EXTRA.name:
            continue
        if name not in entry.inputs:
            others[name] = value
            continue
        for sent, array in _encode(entry, name, value).items():
            if sent in arrays:
                raise InvalidRequest(f"'{name}' and '{sent}' are the same input: send one of them.")
            arrays[sent] = array
    extra = _merge_extra(entry, keywords.get(EXTRA.name), others)
    if extra:
        arrays[EXTRA.name] = encode_value(EXTRA, json.dumps(extra, allow_nan=False))
    return arrays


def without_extra(error: InvalidRequest, keywords: Mapping[str, Any]) -> InvalidRequest:
    """Word the server's refusal of `extra` for a caller who sent keywords and no `extra`."""
    prefix = f"input '{EXTRA.name}': "
    text = str(error)
    if keywords.get(EXTRA.name) is not None or not text.startswith(prefix):
        return error
    text = text.removeprefix(prefix)
    return InvalidRequest(f"argument {text}" if text.startswith("'") else text, error.status)


def _encode(entry: ServedEntry, name: str, value: Any) -> dict[str, Array]:
    if entry.is_media(name):
        return encode_media(entry.inputs[name], value)
    if entry.is_file(name):
        return {name: encode_files(name, value)}
    return {name: encode_value(entry.inputs[name], value)}


def _merge_extra(entry: ServedEntry, given: Any, others: dict[str, Any]) -> dict[str, Any]:
    """Join the caller's own `extra` (a dict or its JSON text) and the keywords without an input."""
    extra = {} if given is None else _read_extra(given)
    if EXTRA.name not in entry.inputs:
        for name in (*others, *extra):
            raise InvalidRequest(unknown("input", name, entry.name, entry.inputs))
    for name, value in others.items():
        if name in extra:
            raise InvalidRequest(f"'{name}' was given as a keyword and inside extra: send one.")
        extra[name] = value
    return {name: _to_json(entry, name, value) for name, value in extra.items()}


def _read_extra(given: Any) -> dict[str, Any]:
    try:
        extra = json.loads(given) if isinstance(given, str | bytes) else given
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"extra is no JSON text: {error}") from None
    if not isinstance(extra, Mapping):
        raise InvalidRequest(
            f"extra was given {describe(given)}, but takes a dict or a JSON object."
        )
    return dict(extra)


def _to_json(entry: ServedEntry, name: str, value: Any) -> Any:
    """Return a value that JSON carries, numpy's numbers and arrays as plain ones."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"'{name}' is no input of {entry.name}{_hint(entry, name)} "
            f"It would travel in extra, but JSON cannot carry {describe(value)}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _hint(entry: ServedEntry, name: str) -> str:
    if is_reserved(name):
        return f": {reserved_hint(name)}."
    return f".{near_miss(name, entry.inputs)}"
