# SPDX-License-Identifier: Apache-2.0
"""Guess a quick call of a pipeline that is not known, from its signature alone."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT, FRAMES = 128, 64, 9
PLAIN: dict[str, Any] = {
    "prompt": "a lighthouse at dusk",
    "height": HEIGHT,
    "width": WIDTH,
    "num_frames": FRAMES,
    "frames": FRAMES,
    "video_length": FRAMES,
    "audio_end_in_s": 1.0,
    "audio_length_in_s": 1.0,
    "audio_duration": 1.0,
    "lyrics": "the sea is calm tonight",
    "class_labels": [0],
    "processing_resolution": 0,
}
"""Sent where the pipeline has the parameter. 9 frames suit those that want 4n+1 or 8n+1."""

STEPS = re.compile(r"(^|_)num_inference_steps$")
PICTURE = re.compile(r"^(image|images|control_image|init_image|original_image|img)$")
MASK = re.compile(r"^(mask_image|mask|control_mask)$")
CLIP = re.compile(r"^(video|pose_video|face_video|control_video)$")
SOUND = re.compile(r"^(audio|src_audio|reference_audio|initial_audio_waveforms)$")


def guess_inputs(pipeline_class: str) -> dict[str, Any]:
    """Return arguments for a class of diffusers: a prompt, two steps, small media."""
    import diffusers

    call = getattr(diffusers, pipeline_class).__call__
    parameters = inspect.signature(call).parameters
    inputs = {}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        value = _guess(name, "video" in parameters, required)
        if value is not None and not (SOUND.search(name) and not required):
            inputs[name] = value
    return inputs


def is_media(name: str) -> bool:
    """Tell whether a parameter takes pictures or a video, which --set gives as paths."""
    return any(kind.search(name) for kind in (PICTURE, MASK, CLIP))


def _guess(name: str, has_video: bool, required: bool) -> Any:
    if STEPS.search(name):
        return 2
    if PICTURE.search(name):
        return draw_picture()
    if MASK.search(name):
        return [draw_mask()] * FRAMES if name == "mask" and has_video else draw_mask()
    if CLIP.search(name):
        return [draw_picture(seed) for seed in range(FRAMES)]
    if SOUND.search(name):
        rng = np.random.default_rng(0)
        return rng.uniform(-1, 1, (1, 16000)).astype(np.float32)
    if name == "initial_audio_sampling_rate":
        return None
    return PLAIN.get(name)


def draw_picture(seed: int = 0) -> Image.Image:
    """RGB picture of coarse coloured noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((WIDTH, HEIGHT))


def draw_mask() -> Image.Image:
    """Greyscale mask, white in its middle."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[HEIGHT // 4 : -HEIGHT // 4, WIDTH // 4 : -WIDTH // 4] = 255
    return Image.fromarray(mask)
