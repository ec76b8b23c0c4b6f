# SPDX-License-Identifier: Apache-2.0
"""Pictures, masks, clips and sound to call the tiny pipelines with."""

from __future__ import annotations

import numpy as np
from PIL import Image


def draw_picture(seed: int = 0, width: int = 32, height: int = 32) -> Image.Image:
    """RGB picture: colour gradients with noise; every seed gives another one."""
    rng = np.random.default_rng(seed)
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    weights = rng.uniform(-1, 1, (3, 2))
    planes = [a * across + b * down for a, b in weights]
    pixels = 128 + 90 * np.stack(planes, axis=-1) + rng.normal(0, 20, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_mask(width: int = 32, height: int = 32) -> Image.Image:
    """Greyscale mask, white (to be repainted) in its middle."""
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : -height // 4, width // 4 : -width // 4] = 255
    return Image.fromarray(mask)


def draw_cutout(seed: int = 0, width: int = 32, height: int = 32) -> Image.Image:
    """RGBA picture that is opaque in its middle only."""
    picture = draw_picture(seed, width, height)
    picture.putalpha(draw_mask(width, height))
    return picture


def draw_clip(frames: int, seed: int = 0, width: int = 32, height: int = 32) -> list[Image.Image]:
    """Frames of a video."""
    return [draw_picture(seed + index, width, height) for index in range(frames)]


def make_sound(samples: int, seed: int = 0) -> np.ndarray:
    """Noise, float32 [1, samples], within -1.0-1.0: one sound with one channel."""
    return np.random.default_rng(seed).uniform(-1, 1, (1, samples)).astype(np.float32)
