# SPDX-License-Identifier: Apache-2.0
"""A JSON object that a caller or an operator wrote: strict where Python's parser is lenient."""

import json
import math
from typing import Any

MAX_DEPTH = 32
LARGEST_INTEGER = 2**63


EXAMPLE = '{"a": 1}'


def read_json_object(text: str, example: str = EXAMPLE) -> dict[str, Any]:
    """Read one JSON object. Raises ValueError as `read_json`, and for any other JSON."""
    value = read_json(text, example)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object such as {example}, got {text[:80]!r}")
    return value


def read_json(text: str, example: str = EXAMPLE) -> Any:
    """Read one JSON value. example: what the message for malformed JSON shows.

    Raises ValueError, saying what to write, for malformed JSON, NaN and infinity, numbers that no
    tensor could hold, a name that stands twice in an object, and nesting deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_read_pairs)
    except (json.JSONDecodeError, RecursionError) as error:
        kind = "list" if example.startswith("[") else "object"
        raise ValueError(
            f"malformed JSON ({error}) in {text[:80]!r}; write a JSON {kind} such as {example}"
        ) from None
    _check(value, 0)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number; write a finite one")


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"'{twice[:80]}' stands twice in the JSON; write it once")
    return found


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH}; write it flatter")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large; write finite numbers")
    if isinstance(value, int) and not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise ValueError("a number is too large; write integers of 64 bits")
    parts = value.values() if isinstance(value, dict) else value
    for part in parts if isinstance(value, dict | list) else ():
        _check(part, depth + 1)
