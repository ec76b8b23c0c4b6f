# SPDX-License-Identifier: Apache-2.0
"""One input tensor -> the Python value that `__call__` gets. Every refusal says what to send."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.config.json_text import read_json_object
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import BYTES_SUFFIX, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.media import decode
from triton_diffusers.media.modes import to_mode, white_where_one
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.signature import MASK_MODE, Parameter

CHANNELS = (1, 2, 3, 4)
"""Of L, LA, RGB and RGBA."""
MAX_SIDE = 1 << 16


def texts(array: Array, name: str, config: ServeConfig) -> list[str]:
    """Return the elements of a STRING tensor as text. Raises RequestError."""
    found = []
    for element in not_empty(array, name).flat:
        try:
            text = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError:
            raise RequestError(f"input '{name}': not UTF-8; send text encoded as UTF-8") from None
        if len(text) > config.max_prompt_chars:
            raise RequestError(
                f"input '{name}': {len(text)} characters; at most {config.max_prompt_chars} are "
                "accepted (max_prompt_chars of the entry); send a shorter text"
            )
        found.append(text)
    return found


def numbers(array: Array, name: str) -> list[Any]:
    """Return the elements of a numeric tensor as Python numbers; NaN and infinity are refused."""
    return list(finite(not_empty(array, name), name).reshape(-1).tolist())


def finite(array: Array, name: str) -> Array:
    """Return the array. Raises RequestError when it holds NaN or infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"input '{name}': NaN or infinite; send finite numbers")
    return array


def single(values: list[Any], name: str) -> Any:
    """Return the only element. Raises RequestError when there are more."""
    if len(values) != 1:
        raise RequestError(f"input '{name}': {len(values)} elements; send exactly one, shape [1]")
    return values[0]


def not_empty(array: Array, name: str) -> Array:
    """Return the array. Raises RequestError when it has no element."""
    if array.size == 0:
        shape = list(array.shape)
        raise RequestError(
            f"input '{name}': empty (shape {shape}); send at least one element or leave it out"
        )
    return array


def value_of(parameter: Parameter, array: Array, config: ServeConfig) -> Any:
    """Turn the tensor of a parameter that is no media into the value for `__call__`."""
    name = parameter.name
    if array.size == 0 and parameter.may_be_empty:
        return () if parameter.as_tuple else []
    if parameter.kind in (Kind.TEXT, Kind.STRING):
        values: list[Any] = texts(array, name, config)
    else:
        values = numbers(array, name)
    if parameter.kind in (Kind.STRING, Kind.INT, Kind.FLOAT, Kind.BOOL):
        return chosen(parameter, single(values, name))
    return one_or_many(parameter, values)


def one_or_many(parameter: Parameter, values: list[Any]) -> Any:
    """Return a lone element plainly where the pipeline takes one, else a list or tuple."""
    if len(values) == 1 and not (parameter.always_list or parameter.per_network):
        return values[0]
    return tuple(values) if parameter.as_tuple else values


def chosen(parameter: Parameter, value: Any) -> Any:
    """Return the value, as a member of the parameter's enum where it has one."""
    if parameter.choices and str(value) not in parameter.choices:
        listed = ", ".join(parameter.choices)
        raise RequestError(f"input '{parameter.name}': {value!r} is not one of {listed}")
    if parameter.enum is not None:
        return next(m for m in parameter.enum if str(m.value) == str(value))  # type: ignore[attr-defined]
    return value


def json_value(parameter: Parameter, value: Any) -> Any:
    """Return a value from JSON as the pipeline's own default has it.

    Raises RequestError for one that is no object (or no list) where only that fits. Keys of JSON
    are text; where the pipeline's are numbers, by default or annotation, they become numbers.
    """
    wanted = parameter.nested_type
    if wanted is not None and not isinstance(value, wanted):
        kind = "object" if wanted is dict else "list"
        raise RequestError(
            f"argument '{parameter.name}': {type(value).__name__}; send a JSON {kind}"
        )
    number = parameter.key_type
    if not isinstance(value, dict) or number is None:
        return value
    try:
        found = {number(key): element for key, element in value.items()}
    except ValueError:
        found = {}
    if len(found) != len(value) or not all(map(math.isfinite, found)):
        kind = "whole numbers" if number is int else "numbers"
        raise RequestError(
            f"argument '{parameter.name}': keys {', '.join(map(repr, value))[:80]}; send each key "
            f'once, as text of {kind} such as "0"'
        )
    return found


def json_object(array: Array, name: str, config: ServeConfig) -> dict[str, Any]:
    """Read an input that holds one JSON object. Raises RequestError."""
    text = single(texts(array, name, config), name)
    try:
        return read_json_object(text)
    except ValueError as error:
        raise RequestError(f"input '{name}': {error}") from None


def read_media(
    parameter: Parameter, inputs: Mapping[str, Array], config: ServeConfig
) -> tuple[Any, int, int | None] | None:
    """Read a media parameter from `x` or `x_bytes`.

    Returns the value for `__call__`, how many there are, and the sampling rate of a sound's file;
    None when neither input was sent. A sound is an array that sound.py fits to the pipeline.
    Raises RequestError.
    """
    name, files = parameter.name, parameter.name + BYTES_SUFFIX
    if name in inputs and files in inputs:
        raise RequestError(f"inputs '{name}' and '{files}' were both sent; send one of them")
    if name not in inputs and files not in inputs:
        return None
    if parameter.kind is Kind.AUDIO:
        return _read_audio(parameter, inputs, config)
    mode = parameter.file_mode
    if name in inputs:
        images = pictures_of(inputs[name], name, config, mode)
    else:
        images = _decode_files(parameter, inputs[files], files, config)
    if mode == MASK_MODE:
        images = white_where_one(images)
    if parameter.kind is Kind.VIDEO:
        decode.check_frames(len(images), name if name in inputs else files, config)
        tensor = parameter.video_tensor or _video_tensor
        video = tensor(name, images) if parameter.as_tensor else images
        return ([video] if parameter.per_network else video), 1, None
    return one_or_many(parameter, images), len(images), None


def pictures_of(array: Array, name: str, config: ServeConfig, mode: str) -> list[Image.Image]:
    """Turn uint8 [N, H, W, C] into PIL images of a mode: C is 1 (L), 2 (LA), 3 or 4 (RGBA).

    Raises RequestError.
    """
    if array.ndim != 4 or array.shape[-1] not in CHANNELS:
        raise RequestError(
            f"input '{name}': shape {list(array.shape)}; send [count, height, width, channels] "
            "with 1 (L), 2 (LA), 3 (RGB) or 4 (RGBA) channels"
        )
    not_empty(array, name)
    if array.shape[1] * array.shape[2] > config.max_input_pixels or max(array.shape) > MAX_SIDE:
        raise RequestError(
            f"input '{name}': shape {list(array.shape)}; at most {config.max_input_pixels} pixels "
            "are accepted (max_input_pixels of the entry); send smaller pictures"
        )
    decode.check_pixels_in_all(int(np.prod(array.shape[:3])), name, config)
    pixels = array[..., 0] if array.shape[-1] == 1 else array
    return [to_mode(Image.fromarray(p), mode) for p in pixels]


def _decode_files(
    parameter: Parameter, array: Array, name: str, config: ServeConfig
) -> list[Image.Image]:
    contents = [decode.read_file(e, name, config) for e in not_empty(array, name).flat]
    if parameter.kind is Kind.VIDEO and len(contents) == 1:
        return [
            to_mode(i, parameter.file_mode) for i in decode.decode_video(contents[0], name, config)
        ]
    images: list[Image.Image] = []
    for content in contents:
        images.append(decode.decode_image(content, name, config, parameter.file_mode))
        decode.check_pixels_in_all(sum(i.width * i.height for i in images), name, config)
    return images


def _video_tensor(_name: str, images: list[Image.Image]) -> Any:
    """Return float32 [1, F, C, H, W], 0..1, as diffusers' VideoProcessor takes it."""
    import torch

    frames = np.stack([np.asarray(i.convert("RGB")) for i in images])
    return torch.from_numpy(frames).permute(0, 3, 1, 2)[None].float() / 255


def _read_audio(
    parameter: Parameter, inputs: Mapping[str, Array], config: ServeConfig
) -> tuple[Any, int, int | None]:
    name, files, rate = parameter.name, parameter.name + BYTES_SUFFIX, None
    if name in inputs:
        samples = finite(not_empty(inputs[name], name), name)
    else:
        element = single(list(not_empty(inputs[files], files).flat), files)
        data = decode.read_file(element, files, config)
        samples, rate = decode.decode_audio(data, files, config)
    if samples.ndim != 2:
        raise RequestError(f"input '{name}': shape {list(samples.shape)}; send [channels, samples]")
    return samples.astype(np.float32, copy=False), 1, rate
