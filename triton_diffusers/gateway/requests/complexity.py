# SPDX-License-Identifier: Apache-2.0
"""JSON whose reading takes no time: as many values as may, nested as deep as may.

A text of 64 MiB is read in 0.2 s, but a list of 30 million numbers in many, and nothing else runs
in Python meanwhile.
"""

import json
from typing import Any

MAX_DEPTH = 64


class TooComplexError(Exception):
    """What a JSON text has too many of."""


def load_json(text: str | bytes, most: int) -> Any:
    """Return a JSON text's value. Raises TooComplexError, and what json.loads() raises."""
    marks = [mark.encode() if isinstance(text, bytes) else mark for mark in ",[{"]
    if sum(map(text.count, marks)) > most:  # type: ignore[arg-type]
        raise TooComplexError(
            f"more than {most} values, or commas and brackets in its texts, which is the limit of "
            "this gateway (max_json_values); send fewer"
        )
    value = json.loads(text)
    level, depth = [value], 0
    while level := [item for holder in level for item in _items(holder)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise TooComplexError(f"lists or objects over {MAX_DEPTH} deep; send a flatter one")
    return value


def _items(holder: Any) -> list[Any]:
    if isinstance(holder, dict):
        return list(holder.values())
    return holder if isinstance(holder, list) else []
