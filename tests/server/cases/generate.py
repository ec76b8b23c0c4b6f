# SPDX-License-Identifier: Apache-2.0
"""JSON for /generate that must be refused: flat fields become inputs or parameters there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JsonCase:
    """A body for /generate, which answers 400 to every error of the model."""

    name: str
    entry: str
    body: Any
    """JSON, or bytes that are sent as they are."""
    words: tuple[str, ...] = ()
    by_triton: bool = False
    """Refused by Triton's own JSON reader, whose answer to some of these is 500."""


def _fox(name: str, fields: dict[str, Any], *words: str) -> JsonCase:
    return JsonCase(name, "pictures", {"prompt": "a fox"} | fields, words)


def _garbled(name: str, body: Any) -> JsonCase:
    return JsonCase(name, "pictures", body, by_triton=True)


JSON_CASES = (
    _fox("unknown-field", {"num_inference_step": 3}, "Did you mean 'num_inference_steps'"),
    _fox("unknown-text-field", {"style": "oil"}, "style", "Accepted"),
    _fox("unknown-true", {"fast": True}, "fast", "Accepted"),
    _fox("unknown-list", {"stile": ["oil", "ink"]}, "stile"),
    _fox("unknown-object", {"options": {"steps": 3}}, "options"),
    _fox("unknown-null", {"stile": None}, "stile"),
    _garbled("text-for-number", {"prompt": "a fox"} | {"num_inference_steps": "three"}),
    _garbled("object-for-number", {"prompt": "a fox"} | {"height": {"value": 16}}),
    _garbled("true-for-number", {"prompt": "a fox"} | {"height": True}),
    _garbled("huge-integer", {"prompt": "a fox"} | {"seed": 2**70}),
    _fox("nested-list", {"timesteps": [[1], [2]]}, "timesteps"),
    _garbled("mixed-list", {"prompt": "a fox"} | {"timesteps": [1, "two"]}),
    _fox("empty-list", {"prompt": []}, "prompt", "empty"),
    _fox("two-numbers", {"height": [16, 16]}, "height"),
    _fox("steps-500000", {"num_inference_steps": 500_000}, "max_steps"),
    _fox("reserved", {"generator": 7}, "generator", "reserved", "seed"),
    _fox("load-time", {"dtype": "float16"}, "load-time"),
    _fox("bad-extra", {"extra": "{"}, "malformed JSON"),
    _fox("format", {"output_format": "jpg"}, "jpeg"),
    JsonCase("no-prompt", "pictures", {}, ("prompt",)),
    _garbled("list", [1, 2]),
    _garbled("text", "a fox"),
    _garbled("null", None),
    _garbled("malformed", b'{"prompt": '),
    JsonCase("not-utf8", "pictures", b'{"prompt": "\xff\xfe"}', ("UTF-8",)),
    _garbled("no-body", b""),
    _garbled("deep", b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    JsonCase("words-for-image", "edits", {"prompt": "a", "image_bytes": "cat.png"}, ("base64",)),
    JsonCase("numbers-for-image", "edits", {"prompt": "a", "image": [1, 2, 3]}, ("height",)),
)
