# SPDX-License-Identifier: Apache-2.0
"""What a caller wants back and cannot have."""

from __future__ import annotations

from tests.server.cases.case import Case

FOX = {"prompt": "a fox"}


def _with(name: str, values: dict[str, object], *words: str, entry: str = "pictures") -> Case:
    return Case(name, entry, FOX | values, words)


CASES = (
    _with("format-near-miss", {"output_format": "pngg"}, "pngg", "Did you mean 'png'", "jpeg"),
    _with("format-jpg", {"output_format": "jpg"}, "jpg", "jpeg"),
    _with("format-upper-case", {"output_format": "PNG"}, "PNG", "png"),
    _with("format-mime", {"output_format": "image/png"}, "image/png", "png"),
    _with("format-empty", {"output_format": ""}, "output_format", "png"),
    _with("format-pil", {"output_format": "pil"}, "pil", "png"),
    _with("video-of-pictures", {"output_format": "mp4"}, "mp4", "png"),
    _with("sound-of-pictures", {"output_format": "wav"}, "wav", "png"),
    _with("pictures-of-sound", {"output_format": "png"}, "png", "flac", entry="sounds"),
    _with("quality-zero", {"output_format": "jpeg", "output_quality": 0}, "1 to 100"),
    _with("quality-101", {"output_format": "webp", "output_quality": 101}, "1 to 100"),
    _with("quality-of-png", {"output_format": "png", "output_quality": 80}, "no effect", "jpeg"),
    _with("quality-of-tensor", {"output_quality": 80}, "no effect", "jpeg"),
    _with("base64-of-tensor", {"output_base64": True}, "no effect", "output_format"),
    _with("fps-of-pictures", {"fps": 8.0}, "fps"),
)
