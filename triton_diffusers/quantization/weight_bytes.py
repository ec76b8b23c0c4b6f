# SPDX-License-Identifier: Apache-2.0
"""How many bytes a model's weights take, and which of them are quantized.

A quantized tensor keeps the shape and dtype that the code around it expects, so `nbytes` tells
nothing: the tensors that it is made of are counted.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

EIGHT_BIT = ("int8", "uint8", "float8")
PACKED = ("qweight", "weight_packed")
"""Names under which some libraries keep several weights per integer."""


class WeightBytes(NamedTuple):
    """`before`: at the dtype that the weights were loaded in. `quantized`: number of tensors."""

    before: int
    after: int
    quantized: int


def count_bytes(model: Any) -> WeightBytes:
    """Count the parameters and buffers of a model, each once."""
    before = after = quantized = 0
    for name, tensor in _named_tensors(model):
        size = tensor_bytes(tensor)
        after += size
        if is_quantized(name, tensor):
            quantized += 1
            before += _original_bytes(tensor, getattr(model, "dtype", None)) or size
        else:
            before += size
    return WeightBytes(before, after, quantized)


def is_quantized(name: str, tensor: Any) -> bool:
    """Tell whether a tensor holds quantized weights, whichever library made it."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (
        hasattr(tensor, "__tensor_flatten__")
        or dtype.startswith(EIGHT_BIT)
        or name.rpartition(".")[2] in PACKED
    )


def tensor_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor with all that it is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return _own_bytes(tensor) + sum(_own_bytes(attached) for attached in _attached(tensor))


def _named_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _own_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _attached(tensor: Any) -> Iterator[Any]:
    """Yield what bitsandbytes hangs on a parameter: scales, and the state of packed weights."""
    for holder in (tensor, getattr(tensor, "quant_state", None)):
        for value in vars(holder).values() if hasattr(holder, "__dict__") else ():
            if hasattr(value, "element_size"):
                yield value


def _original_bytes(tensor: Any, dtype: Any) -> int | None:
    """Return what a quantized tensor took before; None where nothing tells.

    torchao's tensors still say their dtype; the state of bitsandbytes' says shape and dtype; other
    8-bit tensors were of the model's dtype.
    """
    if hasattr(tensor, "__tensor_flatten__"):
        return _own_bytes(tensor)
    if str(tensor.dtype).removeprefix("torch.").startswith(EIGHT_BIT) and dtype is not None:
        state = getattr(tensor, "quant_state", None)
        itemsize = getattr(state, "dtype", dtype).itemsize
        return int(math.prod(getattr(state, "shape", tensor.shape)) * itemsize)
    return None
