# SPDX-License-Identifier: Apache-2.0
"""Calls <-> bodies of Triton's HTTP API: a JSON head, then the tensors, bit for bit.

Format: KServe v2 protocol with Triton's binary tensor data extension.
"""

import json
from typing import Any

import numpy as np
from tritonclient.utils import deserialize_bytes_tensor

from triton_diffusers.client.call import (
    DTYPE_NAMES,
    WIRE_DTYPES,
    InferenceRequest,
    from_region,
    raw_bytes,
)
from triton_diffusers.client.regions import Slot
from triton_diffusers.media.pixels import Array


def encode_call(call: InferenceRequest) -> tuple[bytes, list[bytes]]:
    """Return the JSON head of a call and the tensors that follow it."""
    inputs, contents = [], []
    for name, array in call.inputs.items():
        parameters: dict[str, Any]
        if name in call.input_slots:
            parameters = _reference(call, call.input_slots[name])
        else:
            contents.append(raw_bytes(array))
            parameters = {"binary_data_size": len(contents[-1])}
        tensor = {"name": name, "shape": array.shape, "datatype": DTYPE_NAMES[array.dtype]}
        inputs.append(tensor | {"parameters": parameters})
    parameters = {"binary_data_output": True, **call.parameters}
    head: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if call.outputs is not None:
        head["outputs"] = [_requested(call, name) for name in call.outputs]
    return json.dumps(head).encode(), contents


def _requested(call: InferenceRequest, name: str) -> dict[str, Any]:
    if name in call.output_slots:
        return {"name": name, "parameters": _reference(call, call.output_slots[name])}
    return {"name": name, "parameters": {"binary_data": True}}


def _reference(call: InferenceRequest, slot: Slot) -> dict[str, Any]:
    if call.region is None:
        raise ValueError("the call has slots but no region")
    return {
        "shared_memory_region": call.region.name,
        "shared_memory_byte_size": slot.byte_size,
        "shared_memory_offset": slot.offset,
    }


def decode_response(
    call: InferenceRequest, body: bytes, head_length: int | None
) -> dict[str, Array]:
    """Read the outputs of a response; its tensors are views of the body or of the call's region."""
    offset = len(body) if head_length is None else head_length
    outputs = {}
    for tensor in json.loads(body[:offset]).get("outputs", []):
        name, dtype, shape = tensor["name"], WIRE_DTYPES[tensor["datatype"]], tuple(tensor["shape"])
        size = tensor.get("parameters", {}).get("binary_data_size", 0)
        if name in call.output_slots:
            outputs[name] = from_region(call, name, dtype, shape)
        elif dtype == np.object_:
            outputs[name] = deserialize_bytes_tensor(body[offset : offset + size]).reshape(shape)
        else:
            outputs[name] = np.ndarray(shape, dtype, buffer=body, offset=offset)
        offset += size
    return outputs
