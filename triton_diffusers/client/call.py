# SPDX-License-Identifier: Apache-2.0
"""One request as every transport takes it, and how its tensors are laid out."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from tritonclient.utils import serialize_byte_tensor

from triton_diffusers.client.regions import Region, Slot
from triton_diffusers.client.values import NUMPY_DTYPES
from triton_diffusers.contract import OUTPUT_BASE64, PREVIEW, PROBE, PROGRESS, QUEUE_PRIORITY
from triton_diffusers.media.decode import read_image
from triton_diffusers.media.pixels import Array

Progress = Callable[[int, int], None]
"""Called with (step, total)."""

Preview = Callable[[int, int, list[Image.Image]], None]
"""Called with (step, total, a picture for each output)."""

SHORT_NAMES = {f"TYPE_{short}": short for short in ("BOOL", "FP16", "FP32", "FP64")} | {
    "TYPE_STRING": "BYTES",
    **{
        f"TYPE_{sign}INT{bits}": f"{sign}INT{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
"""config.pbtxt's data type -> the wire's."""

WIRE_DTYPES = {short: NUMPY_DTYPES[long] for long, short in SHORT_NAMES.items()}
DTYPE_NAMES = {np.dtype(dtype): short for short, dtype in WIRE_DTYPES.items()}


@dataclass(frozen=True)
class InferenceRequest:
    """One request: slots place tensors in `region`, `outputs` names what to return (None: all)."""

    model: str
    inputs: Mapping[str, Array]
    decoupled: bool = False
    timeout_s: float | None = None
    priority: int = 0
    on_progress: Progress | None = None
    on_preview: Preview | None = None
    region: Region | None = None
    input_slots: Mapping[str, Slot] = field(default_factory=dict)
    output_slots: Mapping[str, Slot] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    probe: bool = False
    """Ask only how the model is."""

    @property
    def parameters(self) -> dict[str, int | bool]:
        """The request's parameters: how long the server may take, in its unit, how urgent, or that
        it is a probe."""
        if self.probe:
            return {PROBE: True}
        timeout = {} if self.timeout_s is None else {"timeout": max(1, round(self.timeout_s * 1e6))}
        return timeout | ({QUEUE_PRIORITY: self.priority} if self.priority else {})


def raw_bytes(array: Array) -> bytes:
    """Lay an array out as on the wire: C order; texts and files each behind their 4-byte length."""
    if array.dtype != np.object_:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def read_progress(call: InferenceRequest, outputs: Mapping[str, Array]) -> bool:
    """Report a response that carries progress and no result; return whether it was one."""
    if PROGRESS.name not in outputs or not outputs.keys() <= {PROGRESS.name, PREVIEW.name}:
        return False
    step, total = outputs[PROGRESS.name].reshape(-1).tolist()
    if call.on_progress is not None:
        call.on_progress(step, total)
    if call.on_preview is not None and PREVIEW.name in outputs:
        call.on_preview(step, total, _read_previews(call, outputs[PREVIEW.name]))
    return True


def _read_previews(call: InferenceRequest, previews: Array) -> list[Image.Image]:
    files = previews.reshape(-1).tolist()
    if OUTPUT_BASE64.name in call.inputs and call.inputs[OUTPUT_BASE64.name].all():
        files = [base64.b64decode(file) for file in files]
    return [read_image(file) for file in files]


def from_region(call: InferenceRequest, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return an output that the server wrote into the call's region, without copying it."""
    if call.region is None:
        raise ValueError(f"output '{name}' is in shared memory, but the call has none")
    return call.region.array(call.output_slots[name], dtype, shape)
