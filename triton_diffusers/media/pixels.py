# SPDX-License-Identifier: Apache-2.0
"""What pipelines return as pictures or frames -> arrays of bytes, quickly.

A video of 64 MB is converted in the time that its copy takes, so that serving costs no more than
sending: blocks that stay in the processor's cache, and a second thread where it pays.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from triton_diffusers.errors import RequestError

Array: TypeAlias = np.ndarray[Any, Any]
"""Numpy, of any dtype and rank that its place states."""

BLOCK = 1 << 18
"""Values converted at a time."""

PARALLEL = 1 << 22
"""From how many values on a second thread pays (numpy and Pillow let others run)."""

THREADS = min(4, os.cpu_count() or 1)


def to_uint8(values: Array, on_nan: Callable[[], None] = lambda: None) -> Array:
    """Turn floats 0..1 into bytes, `round(255 * x)` as diffusers does for PIL; bytes pass.

    NaN becomes 0, as in diffusers; `on_nan` is called when there was one.
    Source: diffusers.image_processor.VaeImageProcessor.numpy_to_pil.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer):
        return values.astype(np.uint8)
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, np.uint8)
    scale = flat.dtype.type(255)

    def convert(start: int) -> None:
        span = slice(start, start + BLOCK)
        block = flat[span] * scale
        if np.isnan(block.sum()):
            on_nan()
        with np.errstate(invalid="ignore"):
            out[span] = np.rint(block, out=block)

    _each(convert, range(0, flat.size, BLOCK), flat.size)
    return out.reshape(values.shape)


def read_pictures(value: Any, on_nan: Callable[[], None] = lambda: None) -> list[Array]:
    """Return what a field of pictures holds, one uint8 array per output.

    value: PIL images, arrays (..., H, W, C) or tensors (..., C, H, W), 0..1, also in nested
    lists. Each element of the result is [H, W, C], or [F, H, W, C] where an output is a list.
    """
    if isinstance(value, Image.Image):
        return [_pixels(value)]
    if isinstance(value, list | tuple):
        return [_picture(element, on_nan) for element in value]
    return list(to_uint8(_channels_last(value, batched=True), on_nan))


def stack(arrays: Sequence[Array]) -> Array:
    """Stack pictures of one size. Raises RequestError naming the way out when sizes differ."""
    if len({a.shape for a in arrays}) > 1:
        sizes = ", ".join(f"{a.shape[-2]}x{a.shape[-3]}" for a in arrays)
        raise RequestError(
            f"the results have different sizes ({sizes}) and fit no single tensor; send "
            "output_format png to get a file each"
        )
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def float32(value: Any) -> Array:
    """Return a torch tensor, an array or numbers as float32."""
    if is_torch(value):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)


def is_torch(value: Any) -> bool:
    """Tell whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "detach") and hasattr(value, "movedim")


def _picture(element: Any, on_nan: Callable[[], None]) -> Array:
    if isinstance(element, Image.Image):
        return _pixels(element)
    if isinstance(element, list | tuple):
        if all(isinstance(e, Image.Image) for e in element):
            return _read_frames(element)
        return stack([_picture(e, on_nan) for e in element])
    return to_uint8(_channels_last(element, batched=False), on_nan)


def _read_frames(frames: Sequence[Image.Image]) -> Array:
    """Return PIL frames as [F, H, W, C], each written where it belongs."""
    first = _pixels(frames[0])
    if any(f.size != frames[0].size or f.mode != frames[0].mode for f in frames):
        return stack([_pixels(f) for f in frames])
    out = np.empty((len(frames), *first.shape), np.uint8)

    def read(index: int) -> None:
        out[index] = _pixels(frames[index])

    _each(read, range(len(frames)), out.size)
    return out


def _pixels(image: Image.Image) -> Array:
    if image.mode not in ("L", "RGB", "RGBA"):
        image = image.convert("RGB")
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _channels_last(value: Any, batched: bool) -> Array:
    if is_torch(value):
        return float32(value.movedim(-3, -1) if value.ndim >= 3 else value)
    array = np.asarray(value)
    grey = array.ndim == (3 if batched else 2)
    return array[..., None] if grey else array


def _each(function: Callable[[int], None], items: Sequence[int], size: int) -> None:
    """Call a function on every item, in threads where there is enough to do."""
    if size < PARALLEL or THREADS == 1:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(function, items))
