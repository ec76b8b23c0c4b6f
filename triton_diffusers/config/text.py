# SPDX-License-Identifier: Apache-2.0
"""The value of a load-time option <-> its text in config.pbtxt, by declared type."""

import dataclasses
import json
import re
import types
import typing
from typing import Any

from triton_diffusers.config.json_text import read_json, read_json_object
from triton_diffusers.errors import ConfigError

Option = dataclasses.Field[Any]
JSON_TYPES: dict[type, str] = {dict: "object", list: "list"}
TYPE_NAMES: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    dict: "a JSON object",
    list: "a JSON list",
}


def option_type(option: Option) -> type:
    """Return the plain type of an option: str, int, float, bool or dict."""
    return option_types(option)[0]


def option_types(option: Option) -> tuple[type, ...]:
    """Return the plain types of an option; str stands before the JSON types that it also takes."""
    hint: Any = option.type
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(t) or t for t in hints if t is not types.NoneType)


def read_option(option: Option, text: str) -> Any:
    """Read one option's text by its declared type. Raises ConfigError naming the option."""
    kinds = option_types(option)
    try:
        if len(kinds) > 1 and text.lstrip()[:1] in ("{", "["):
            return _read_json(kinds[1:], text, option.metadata["traits"].example)
        if kinds[0] is dict:
            return read_json_object(text, option.metadata["traits"].example)
        value = READ[kinds[0]](text)
    except ValueError as error:
        raise ConfigError(f"parameter '{option.name}': {error}") from None
    check_value(option, value, repr(text))
    return value


def check_value(option: Option, value: Any, shown: str) -> None:
    """Raise ConfigError for a value of another type, or one that the option does not take.

    shown: the value as the operator wrote it.
    """
    kinds = option_types(option)
    wrong_bool = isinstance(value, bool) and bool not in kinds
    if wrong_bool or not isinstance(value, (*kinds, int) if float in kinds else kinds):
        words = " or ".join(TYPE_NAMES[kind] for kind in kinds)
        raise ConfigError(f"parameter '{option.name}': {shown} is not {words}")
    if isinstance(value, dict | list):
        return
    _check_plain(option, value, shown)


def _check_plain(option: Option, value: Any, shown: str) -> None:
    choices, form = option.metadata["choices"], option.metadata["form"]
    minimum, maximum = option.metadata["minimum"], option.metadata["maximum"]
    if choices and value not in choices:
        raise ConfigError(f"parameter '{option.name}': {shown} is not one of {', '.join(choices)}")
    if minimum is not None and value < minimum:
        raise ConfigError(f"parameter '{option.name}': {shown} is below {minimum}")
    if maximum is not None and value > maximum:
        raise ConfigError(f"parameter '{option.name}': {shown} is above {maximum}")
    if form and not re.fullmatch(form[0], value):
        raise ConfigError(f"parameter '{option.name}': {shown} is not {form[1]}")
    if isinstance(value, str) and option.default != "" and not value.strip():
        raise ConfigError(f"parameter '{option.name}' is empty: give a value, or leave it out")


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not 'true' or 'false'")
    return text.lower() == "true"


def _read_json(kinds: tuple[type, ...], text: str, example: str) -> Any:
    value = read_json(text, example)
    if not isinstance(value, kinds):
        wanted = " or ".join(JSON_TYPES[kind] for kind in kinds)
        raise ValueError(f"expected a JSON {wanted} such as {example}, got {text[:80]!r}")
    return value


def _read_number(kind: type, name: str) -> Any:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {name}") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{text!r} is not a finite number")
        return value

    return read


READ: dict[type, Any] = {
    str: str,
    bool: _read_bool,
    int: _read_number(int, "an integer"),
    float: _read_number(float, "a number"),
}


def write_option(value: Any) -> str:
    """Return an option's value as the text that `read_option` reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
