# SPDX-License-Identifier: Apache-2.0
"""Python values -> the arrays of inputs that are texts, numbers or flags, exactly."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.contract import Tensor
from triton_diffusers.media.pixels import Array

NUMPY_DTYPES: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""Triton's data type -> numpy's."""


def encode_value(tensor: Tensor, value: Any) -> Array:
    """Convert what a caller gave for an input to the declared dtype, or refuse it.

    value: a scalar, or a list, tuple or array of them. Returns an array of rank 1 with the input's
    dtype (texts: object array of UTF-8 bytes); a scalar becomes one element. Inputs of a higher
    rank take arrays of that rank.
    Raises InvalidRequest for a value that the dtype does not hold exactly.
    """
    dtype = NUMPY_DTYPES.get(tensor.data_type)
    if dtype is None:
        raise InvalidRequest(f"input '{tensor.name}' is {tensor.data_type}, which cannot be sent")
    if len(tensor.dims) != 1:
        return _encode_array(tensor, value, dtype)
    items = _items(value)
    if tensor.dims == (1,) and len(items) != 1:
        raise _refusal(tensor, value, "one value")
    convert = _converter(tensor.data_type)
    array = np.empty(len(items), dtype)
    for index, item in enumerate(items):
        array[index] = convert(tensor, item)
    return array


def _items(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else [value[()]]
    return list(value) if isinstance(value, list | tuple | range) else [value]


def _converter(data_type: str) -> Callable[[Tensor, Any], Any]:
    if data_type == "TYPE_STRING":
        return _to_text
    if data_type == "TYPE_BOOL":
        return _to_bool
    return _to_float if data_type.startswith("TYPE_FP") else _to_int


def _to_text(tensor: Tensor, item: Any) -> bytes:
    if not isinstance(item, str):
        raise _refusal(tensor, item, "text")
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"input '{tensor.name}' is no valid Unicode text: {error}") from None


def _to_bool(tensor: Tensor, item: Any) -> bool:
    if not isinstance(item, bool | np.bool_):
        raise _refusal(tensor, item, "True or False")
    return bool(item)


def _to_int(tensor: Tensor, item: Any) -> int:
    whole = isinstance(item, float | np.floating) and float(item).is_integer()
    if isinstance(item, bool) or not (whole or isinstance(item, int | np.integer)):
        raise _refusal(tensor, item, "whole numbers")
    limits = np.iinfo(NUMPY_DTYPES[tensor.data_type])
    if not limits.min <= int(item) <= limits.max:
        raise _refusal(tensor, item, f"whole numbers from {limits.min} to {limits.max}")
    return int(item)


def _to_float(tensor: Tensor, item: Any) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float | np.integer | np.floating):
        raise _refusal(tensor, item, "numbers")
    try:
        number = float(item)
    except OverflowError:
        number = math.inf
    if isinstance(item, int | np.integer) and number != int(item):
        raise _refusal(tensor, item, "numbers that a 64-bit float holds exactly")
    return number


def _encode_array(tensor: Tensor, value: Any, dtype: Any) -> Array:
    array = np.asarray(value)
    if array.ndim != len(tensor.dims) or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise _refusal(tensor, value, f"an array of {np.dtype(dtype)}, axes {list(tensor.dims)}")
    return array.astype(dtype, copy=False)


def _refusal(tensor: Tensor, value: Any, accepted: str) -> InvalidRequest:
    return InvalidRequest(
        f"input '{tensor.name}' was given {describe(value)}, "
        f"but takes {accepted} ({tensor.data_type} {list(tensor.dims)})."
    )


def describe(value: Any) -> str:
    """Word a value for a message: short, and never a whole prompt."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {list(value.shape)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
