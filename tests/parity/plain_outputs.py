# SPDX-License-Identifier: Apache-2.0
"""The fields of a pipeline's output -> arrays, written down a second time from the design.

Pictures and frames become uint8 `(255 * x).round()`, channels last; sound float32 with an axis of
channels; flags bool; texts bytes; everything else float32 as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


def read_output(output: Any) -> dict[str, np.ndarray]:
    """Return the fields of an output object that hold something, by name."""
    return {
        OTHER_NAMES.get(name, name): _READ.get(OTHER_NAMES.get(name, name), _read_other)(value)
        for name, value in output.items()
        if value is not None and not _is_only_none(value)
    }


def _is_only_none(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(item is None for item in value)


def _read_images(value: Any) -> np.ndarray:
    """uint8 [N, height, width, channels]; several pictures of one output count as outputs."""
    pixels = _pixels(value, axes=4)
    return pixels.reshape(-1, *pixels.shape[-3:])


def _read_frames(value: Any) -> np.ndarray:
    """uint8 [N, frames, height, width, channels]."""
    pixels = _pixels(value, axes=5)
    return pixels if pixels.ndim == 5 else pixels[None]


def _pixels(value: Any, axes: int) -> np.ndarray:
    if isinstance(value, Image.Image):
        pixels = np.asarray(value)
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    if isinstance(value, list | tuple):
        return np.stack([_pixels(item, axes - 1) for item in value])
    if hasattr(value, "detach"):
        value = value.detach().float().movedim(-3, -1).numpy()
    if value.dtype != np.uint8:
        value = (255 * value).round().astype(np.uint8)
    return value if value.ndim == axes or value.shape[-1] in (1, 3, 4) else value[..., None]


def _read_audios(value: Any) -> np.ndarray:
    """float32 [N, channels, samples]."""
    sound = _read_other(value)
    return sound if sound.ndim == 3 else sound[:, None, :]


def _read_flags(value: Any) -> np.ndarray:
    return np.array(value, np.bool_)


def _read_other(value: Any) -> np.ndarray:
    if isinstance(value, str):
        return np.array([value.encode()], np.object_)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return np.array([item.encode() for item in value], np.object_)
    if isinstance(value, list | tuple):
        return np.stack([_read_other(item) for item in value])
    if hasattr(value, "detach"):
        value = value.detach().float().numpy()
    return np.asarray(value, np.float32)


OTHER_NAMES = {"image": "images", "video": "frames", "videos": "frames"}
_READ = {
    "images": _read_images,
    "frames": _read_frames,
    "audios": _read_audios,
    "nsfw_content_detected": _read_flags,
}
