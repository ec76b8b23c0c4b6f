# SPDX-License-Identifier: Apache-2.0
"""A JSON object that a caller sent: strict where Python's parser is lenient."""

import json
import math
from typing import Any

from triton_diffusers.errors import RequestError

MAX_DEPTH = 32
LARGEST_INTEGER = 2**63


def read_json_object(text: str, name: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises RequestError for malformed JSON, NaN and infinity, numbers that no tensor could hold, a
    name that stands twice in an object, and nesting deeper than `MAX_DEPTH`.
    """

    def refuse(constant: str) -> Any:
        raise RequestError(f"input '{name}': {constant} is not a JSON number")

    def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise RequestError(f"input '{name}': '{twice[:80]}' stands twice; send it once")
        return found

    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=read_pairs)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"input '{name}': malformed JSON ({error}); send a JSON object {{...}}"
        ) from None
    if not isinstance(value, dict):
        raise RequestError(
            f"input '{name}': {type(value).__name__}; send a JSON object {{...}} of arguments"
        )
    _check(value, name, 0)
    return value


def _check(value: Any, name: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RequestError(f"input '{name}': nested deeper than {MAX_DEPTH}; send it flatter")
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"input '{name}': a number is too large; send finite numbers")
    if isinstance(value, int) and not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise RequestError(f"input '{name}': a number is too large; send integers of 64 bits")
    parts = value.values() if isinstance(value, dict) else value
    for part in parts if isinstance(value, dict | list) else ():
        _check(part, name, depth + 1)
