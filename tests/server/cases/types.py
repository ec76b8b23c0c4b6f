# SPDX-License-Identifier: Apache-2.0
"""Tensors of another type, shape or length than the entry lists."""

from __future__ import annotations

import numpy as np

from tests.server.broken_files import picture_array
from tests.server.cases.case import Case

FOX = {"prompt": "a fox"}
EMPTY_TEXT = np.array([], np.object_)


def _with(name: str, values: dict[str, object], *words: str) -> Case:
    return Case(name, "pictures", FOX | values, words)


def _image(name: str, shape: tuple[int, ...], *words: str) -> Case:
    return Case(name, "edits", FOX | {"image": np.zeros(shape, np.uint8)}, ("image", *words))


CASES = (
    _with("steps-as-float", {"num_inference_steps": 3.0}, "num_inference_steps", "INT64"),
    _with("steps-as-text", {"num_inference_steps": "3"}, "num_inference_steps", "INT64"),
    _with("steps-as-int32", {"num_inference_steps": np.array([3], np.int32)}, "INT64"),
    _with("guidance-as-int", {"guidance_scale": 3}, "guidance_scale", "FP64"),
    _with("guidance-as-fp32", {"guidance_scale": np.array([3], np.float32)}, "FP64"),
    _with("prompt-as-number", {"prompt": 3}, "prompt", "BYTES"),
    _with("seed-as-text", {"seed": "7"}, "seed", "INT64"),
    _with("seed-as-unsigned", {"seed": np.array([7], np.uint64)}, "seed", "INT64"),
    _with("base64-as-int", {"output_base64": 1}, "output_base64", "BOOL"),
    _with("steps-of-rank-2", {"num_inference_steps": np.array([[3]])}, "num_inference_steps"),
    _with("prompt-of-rank-2", {"prompt": np.array([[b"a fox"]], np.object_)}, "prompt"),
    _with("two-steps", {"num_inference_steps": [3, 4]}, "num_inference_steps"),
    _with("two-heights", {"height": [16, 16]}, "height"),
    _with("two-formats", {"output_format": ["png", "png"]}, "output_format"),
    _with("two-extras", {"extra": ["{}", "{}"]}, "extra"),
    _with("no-element", {"height": np.array([], np.int64)}, "height"),
    _with("no-prompt-in-list", {"prompt": EMPTY_TEXT}, "prompt", "empty", "at least one"),
    _with("no-negative-in-list", {"negative_prompt": EMPTY_TEXT}, "negative_prompt", "empty"),
    _with("no-seed-in-list", {"seed": np.array([], np.int64)}, "seed", "empty"),
    _with("no-timestep-in-list", {"timesteps": np.array([], np.int64)}, "timesteps", "empty"),
    _image("image-of-rank-3", (32, 32, 3)),
    _image("image-of-rank-5", (1, 1, 32, 32, 3)),
    _image("image-with-5-channels", (1, 32, 32, 5), "channels"),
    _image("image-channels-first", (1, 3, 32, 32), "[count, height, width, channels]"),
    _image("image-without-pixels", (1, 0, 32, 3), "empty"),
    _image("no-image-in-batch", (0, 32, 32, 3), "empty"),
    _image("image-too-large", (1, 1025, 1024, 3), "max_input_pixels", "smaller"),
    _image("images-too-large-in-all", (2, 900, 900, 3), "max_input_pixels_in_all", "fewer"),
    _image("image-too-wide", (1, 1, 100_000, 3), "smaller"),
    Case("image-as-float", "edits", FOX | {"image": np.ones((1, 32, 32, 3))}, ("image", "UINT8")),
    Case("image-as-text", "edits", FOX | {"image": "cat.png"}, ("image",)),
    Case("image-bytes-as-uint8", "edits", FOX | {"image_bytes": picture_array}, ("image_bytes",)),
    Case("video-of-rank-5", "clips", FOX | {"video": lambda: picture_array(5)[None]}, ("video",)),
    Case(
        "sound-of-rank-1",
        "sounds",
        FOX | {"initial_audio_waveforms": np.ones(9, np.float32)},
        ("initial_audio_waveforms",),
    ),
)
