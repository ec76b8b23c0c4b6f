# SPDX-License-Identifier: Apache-2.0
"""Texts, and texts and pictures whose counts do not fit."""

from __future__ import annotations

import numpy as np

from tests.server.broken_files import picture_array
from tests.server.cases.case import Case

NOT_UTF8 = np.array([b"a \xff\xfe fox"], np.object_)


def _with(name: str, inputs: dict[str, object], *words: str) -> Case:
    return Case(name, "pictures", inputs, words)


CASES = (
    _with("prompt-not-utf8", {"prompt": NOT_UTF8}, "prompt", "UTF-8"),
    _with("negative-not-utf8", {"prompt": "a", "negative_prompt": NOT_UTF8}, "negative_prompt"),
    _with("format-not-utf8", {"prompt": "a", "output_format": NOT_UTF8}, "output_format", "UTF-8"),
    _with("prompt-too-long", {"prompt": "a" * 2001}, "prompt", "2001", "max_prompt_chars"),
    _with("prompt-100000-words", {"prompt": "fox " * 100_000}, "prompt", "max_prompt_chars"),
    _with("one-of-two-too-long", {"prompt": ["a", "b" * 5000]}, "prompt", "max_prompt_chars"),
    _with("negative-too-long", {"prompt": "a", "negative_prompt": "b" * 5000}, "negative_prompt"),
    _with(
        "two-negatives-for-one",
        {"prompt": "a", "negative_prompt": ["b", "c"]},
        "negative_prompt",
        "2 elements for 1 prompts",
        "one per prompt",
    ),
    _with(
        "two-negatives-for-three",
        {"prompt": ["a", "b", "c"], "negative_prompt": ["d", "e"]},
        "negative_prompt",
        "2 elements for 3 prompts",
    ),
    _with("no-prompt", {"seed": 7}, "prompt"),
    Case(
        "three-images-for-two-prompts",
        "edits",
        {"prompt": ["a", "b"], "image": lambda: picture_array(3)},
        ("prompt", "image", "3", "2"),
    ),
    Case(
        "two-prompts-for-three-images-uneven",
        "edits",
        {"prompt": ["a", "b", "c"], "image": lambda: picture_array(2)},
        ("prompt", "image", "2", "3"),
    ),
)
