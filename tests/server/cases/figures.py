# SPDX-License-Identifier: Apache-2.0
"""Numbers that no pipeline can work with, or that would keep a server busy for days."""

from __future__ import annotations

import numpy as np

from tests.server.broken_files import image_file
from tests.server.cases.case import Case

FOX = {"prompt": "a fox"}
LARGEST = 2**63 - 1


def _with(name: str, values: dict[str, object], *words: str) -> Case:
    return Case(name, "pictures", FOX | values, words)


def _edit(name: str, values: dict[str, object], *words: str) -> Case:
    return Case(name, "edits", FOX | {"image_bytes": lambda: image_file("png")} | values, words)


CASES = (
    _with("guidance-nan", {"guidance_scale": float("nan")}, "guidance_scale", "finite"),
    _with("guidance-infinite", {"guidance_scale": float("inf")}, "guidance_scale", "finite"),
    _with("sigmas-nan", {"sigmas": [1.0, float("nan")]}, "sigmas", "finite"),
    _edit("strength-nan", {"strength": float("nan")}, "strength", "finite"),
    _edit("strength-0", {"strength": 0.0}, "strength", "less than one"),
    _edit("strength-above-1", {"strength": 1.5}, "strength", "StableDiffusionImg2ImgPipeline"),
    _edit("strength-negative", {"strength": -0.5}, "strength", "StableDiffusionImg2ImgPipeline"),
    _with("height-zero", {"height": 0}, "height", "at least 1"),
    _with("height-negative", {"height": -16}, "height", "at least 1"),
    _with("width-smallest", {"width": -(2**63)}, "width", "at least 1"),
    _with("height-odd", {"height": 17}, "height", "divisible by 8", "StableDiffusionPipeline"),
    _with("height-largest", {"height": LARGEST}, "height", "max_pixels"),
    _with("height-alone", {"height": 1 << 20}, "height", "max_pixels"),
    _with("height-times-width", {"height": 8192, "width": 8192}, "height", "max_pixels"),
    _with(
        "work-in-all",
        {"height": 2048, "width": 2048, "num_inference_steps": 900, "num_images_per_prompt": 8},
        "30199 megapixel-steps",
        "900 steps x 2048 x 2048 pixels x 1 frames x 8 outputs",
        "at most 20000",
        "max_work",
    ),
    _with(
        "work-of-many-prompts",
        {"prompt": ["a fox"] * 60, "height": 1024, "width": 1024, "num_inference_steps": 400},
        "60 outputs",
        "max_work",
    ),
    Case(
        "size-of-a-picture",
        "edits",
        FOX | {"image": lambda: np.zeros((1, 800, 1000, 3), np.uint8)},
        ("'image'", "1000 x 800", "at most 600000", "max_pixels", "smaller picture"),
    ),
    Case(
        "work-with-the-entrys-own-steps-and-the-size-of-a-picture",
        "edits",
        FOX | {"num_images_per_prompt": 4, "image": lambda: np.zeros((1, 500, 1000, 3), np.uint8)},
        ("2 steps x 1000 x 500 pixels x 1 frames x 4 outputs", "at most 3 are", "max_work"),
    ),
    _with("width-with-the-entrys-own-height", {"width": 2**21}, "width", "max_pixels"),
    _with("steps-zero", {"num_inference_steps": 0}, "num_inference_steps", "at least 1"),
    _with("steps-negative", {"num_inference_steps": -1}, "num_inference_steps", "at least 1"),
    _with("steps-500000", {"num_inference_steps": 500_000}, "num_inference_steps", "max_steps"),
    _with("steps-largest", {"num_inference_steps": LARGEST}, "num_inference_steps", "max_steps"),
    _with("timesteps-many", {"timesteps": list(range(2000, 0, -1))}, "timesteps", "max_steps"),
    _with("timesteps-negative", {"timesteps": [5, -1]}, "timesteps"),
    _with("count-zero", {"num_images_per_prompt": 0}, "num_images_per_prompt", "at least 1"),
    _with("count-negative", {"num_images_per_prompt": -2}, "num_images_per_prompt", "at least 1"),
    _with("count-1000", {"num_images_per_prompt": 1000}, "outputs", "max_outputs"),
    _with("count-largest", {"num_images_per_prompt": LARGEST}, "outputs", "max_outputs"),
    _with("prompts-1000", {"prompt": ["a fox"] * 1000}, "outputs", "max_outputs"),
    Case("batch-zero", "shapes", {"batch_size": 0}, ("batch_size", "at least 1")),
    Case("batch-1000", "shapes", {"batch_size": 1000}, ("outputs", "max_outputs")),
    Case("steps-of-unconditional", "shapes", {"num_inference_steps": 10**6}, ("max_steps",)),
    _with("seed-negative", {"seed": -1}, "seed", "at least 0"),
    _with("seed-smallest", {"seed": -(2**63)}, "seed", "at least 0"),
    _with("two-seeds-for-one", {"seed": [1, 2]}, "seed", "2 seeds for 1 outputs"),
    _with(
        "three-seeds-for-four",
        {"prompt": ["a", "b"], "num_images_per_prompt": 2, "seed": [1, 2, 3]},
        "3 seeds for 4 outputs",
    ),
    Case("two-seeds-for-three-shapes", "shapes", {"batch_size": 3, "seed": [1, 2]}, ("seed", "3")),
    Case(
        "fps-zero",
        "clips",
        FOX | {"video": np.zeros((1, 16, 16, 3), np.uint8), "fps": 0.0},
        ("fps", "0.1 to 1000"),
    ),
    Case(
        "fps-nan",
        "clips",
        FOX | {"video": np.zeros((1, 16, 16, 3), np.uint8), "fps": float("nan")},
        ("fps", "finite"),
    ),
    Case(
        "tokens-many",
        "clips",
        FOX | {"video": np.zeros((1, 16, 16, 3), np.uint8), "max_sequence_length": 10**9},
        ("max_sequence_length",),
    ),
    Case("sound-too-long", "sounds", FOX | {"audio_end_in_s": 1e12}, ("audio_end_in_s",)),
    Case("sound-negative", "sounds", FOX | {"audio_end_in_s": -1.0}, ("audio_end_in_s",)),
    Case("waveforms-1000", "sounds", FOX | {"num_waveforms_per_prompt": 1000}, ("max_outputs",)),
)
