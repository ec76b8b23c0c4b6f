# SPDX-License-Identifier: Apache-2.0
"""Pictures of any mode and arrays of any depth -> 8 bits in the mode that a parameter takes.

What has more than 8 bits is scaled, never clipped: 16 bits by 65535, floats from 0 to 1 by 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from triton_diffusers.media.pixels import Array, is_torch

PLAIN = ("L", "LA", "RGB", "RGBA")
"""Modes of 8 bits that arrays have too, by their channels."""
PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
DEEP = "I;16"
"""How the modes of 16 bits begin: one each for every order of bytes."""


class DepthError(ValueError):
    """Values whose meaning as brightness is not known; the text says what to send instead."""


def upright(image: Image.Image) -> Image.Image:
    """Turn a picture as its EXIF orientation says, as `load_image` does."""
    turned = ImageOps.exif_transpose(image)
    turned.format = image.format
    return turned


def eight_bits(image: Image.Image) -> Image.Image:
    """Return a picture in one of the modes PLAIN, with the alpha that it has.

    Raises DepthError for floats that are not from 0 to 1 and for 32-bit integers.
    """
    if image.mode in PLAIN:
        return image
    # older Pillows read the 16 bits of a PNG as mode I
    if image.mode.startswith(DEEP) or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray(to_bytes(np.asarray(image).astype(np.uint16)))
    if image.mode in ("F", "I"):
        return Image.fromarray(to_bytes(np.asarray(image)))
    if image.mode == "1":
        return image.convert("L")
    if image.mode in PREMULTIPLIED:
        return image.convert(PREMULTIPLIED[image.mode])
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Return a picture as L, RGB or RGBA, as Pillow converts it; raises DepthError."""
    image = eight_bits(image)
    return image if image.mode == mode else image.convert(mode)


def to_bytes(values: Array) -> Array:
    """Return brightness as uint8. Raises DepthError for a type or range that does not tell it."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if values.dtype.kind != "f":
        raise DepthError(f"{values.dtype} pixels; send uint8 (0-255), uint16 or floats from 0 to 1")
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):  # NaN too
        raise DepthError(f"floats from {low:g} to {high:g}; send floats from 0 to 1, or uint8")
    scaled: Array = np.rint(values * values.dtype.type(255)).astype(np.uint8)
    return scaled


def as_array(item: Any) -> Array:
    """Return an array; a torch tensor's channels (..., C, H, W) come last, as arrays have them."""
    if not is_torch(item):
        return np.asarray(item)
    item = item.detach().cpu()
    if item.ndim > 2 and item.shape[-3] <= len(PLAIN):
        item = item.movedim(-3, -1)
    array: Array = (item.float() if item.is_floating_point() else item).numpy()
    return array


def white_where_one(masks: Sequence[Image.Image]) -> list[Image.Image]:
    """Return masks of mode L as 0-255, also where 1 is their white.

    Told by the brightest pixel of all of them: 1 of 255 is black to every pipeline.
    """
    if max(mask.getextrema()[1] for mask in masks) != 1:  # one band
        return list(masks)
    return [mask.point(lambda value: value * 255) for mask in masks]
