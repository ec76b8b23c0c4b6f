# SPDX-License-Identifier: Apache-2.0
"""The short form of `quantization_config`: one row per method, and what is refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.errors import ConfigError, unknown

DENOISERS = ("transformer", "transformer_2", "unconditional_transformer", "unet")
"""What the short form quantizes, whichever a pipeline has; the last of Ideogram and of UNets."""


def _anywhere(device: str) -> str | None:
    return None


def _needs_fp8_units(device: str) -> str | None:
    needed = "a GPU of compute capability 8.9 or later (Ada, Hopper, Blackwell) or an AMD MI300"
    kind = device.partition(":")[0]
    if kind == "xpu":
        return None
    if kind != "cuda":
        return f"it needs {needed}, and this entry runs on {device}"
    import torch

    if torch.version.hip:
        from torchao.utils import is_MI300, is_MI350

        found = is_MI300() or is_MI350()
    else:
        found = torch.cuda.get_device_capability(device) >= (8, 9)
    return None if found else f"it needs {needed}, and {device} is {_described(device)}"


def _needs_int4_kernels(device: str) -> str | None:
    needed = "an NVIDIA GPU of compute capability 8.0 or later"
    if device.partition(":")[0] != "cuda":
        return f"its kernels need {needed}, and this entry runs on {device}"
    import torch

    found = not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 0)
    return None if found else f"its kernels need {needed}, and {device} is {_described(device)}"


def _described(device: str) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} with {major}.{minor}"


@dataclass(frozen=True)
class Method:
    """One way to quantize linear layers while a pipeline loads.

    config_class, arguments: torchao's class and what it is made with. dynamic: activations are
    quantized too, at each call; slow: published seconds that tell what this costs uncompiled.
    dtypes: the only load dtypes that work (none: any). on_gpu: the weights must be on the GPU when
    they are quantized. instead: what to do when unavailable.
    """

    name: str
    config_class: str
    about: str
    needs: str
    instead: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    unavailable: Callable[[str], str | None] = _anywhere
    dynamic: bool = False
    slow: str = ""
    dtypes: tuple[str, ...] = ()
    on_gpu: bool = False

    def describe(self) -> str:
        """Return the method as the log and `info` tell it."""
        return f"{self.name} (torchao {self.config_class})"


METHODS = {
    method.name: method
    for method in (
        Method(
            "fp8",
            "Float8DynamicActivationFloat8WeightConfig",
            "Weights in 8-bit floats, activations too at each call; fastest when compiled.",
            "compute capability 8.9 or later, torch_compile",
            "use fp8_weight_only or int8",
            unavailable=_needs_fp8_units,
            dynamic=True,
            slow="FLUX on an H100: 8.6 s against 6.6 s in bfloat16; compiled 3.2 s against 4.2 s",
        ),
        Method(
            "int8",
            "Int8DynamicActivationInt8WeightConfig",
            "Weights in 8-bit integers, activations too at each call; fast when compiled.",
            "torch_compile",
            "use int8_weight_only",
            dynamic=True,
            slow="FLUX on an H100: 130 s against 6.6 s in bfloat16; compiled 3.4 s against 4.2 s",
        ),
        Method(
            "fp8_weight_only",
            "Float8WeightOnlyConfig",
            "Weights in 8-bit floats, computed in the load dtype; half the memory of bfloat16.",
            "",
            "use int8_weight_only",
        ),
        Method(
            "int8_weight_only",
            "Int8WeightOnlyConfig",
            "Weights in 8-bit integers, computed in the load dtype; half the memory of bfloat16.",
            "",
            "use fp8_weight_only",
        ),
        Method(
            "int4_weight_only",
            "Int4WeightOnlyConfig",
            "Weights in 4-bit integers, in groups of 128; a quarter of the memory of bfloat16.",
            "NVIDIA compute capability 8.0 or later, dtype bfloat16, no offload",
            "use int8_weight_only",
            # the plain format, torchao's default, needs the package mslk
            arguments={"int4_packing_format": "tile_packed_to_4d"},
            unavailable=_needs_int4_kernels,
            dtypes=("bfloat16",),
            on_gpu=True,
        ),
    )
}

_SERIALIZED = (
    "checkpoints that hold quantized weights already are not read by the short form: leave "
    "quantization_config away (diffusers finds how they were quantized in their config.json), or "
    "name the unquantized model"
)
_OTHER_FORM = "use diffusers' own form instead: quant_mapping with quant_method"
REFUSED = {
    "gguf": "GGUF files are read one by one, not while a pipeline loads; name the model's "
    "unquantized folder and use int8_weight_only",
    "modelopt": "ModelOpt needs a calibrated checkpoint; use fp8, or leave quantization_config "
    "away for a checkpoint that it wrote",
    "mxfp4": "its kernels serve language models, not diffusers; use int4_weight_only",
    "mxfp8": "its kernels serve language models, not diffusers; use fp8",
    "nvfp4": "it needs a checkpoint quantized beforehand; use int4_weight_only",
    "bitsandbytes": f"it takes arguments that a name cannot carry; {_OTHER_FORM} bitsandbytes",
    "quanto": f"it takes arguments that a name cannot carry; {_OTHER_FORM} quanto",
    "torchao": f"it has many methods; name one, or {_OTHER_FORM} torchao",
}
"""Methods that others know: why not here, and what to use."""
KEYS = {
    "is_checkpoint_fp8_serialized": _SERIALIZED,
    "is_checkpoint_int8_serialized": _SERIALIZED,
    "weight_block_size": "torchao's methods have one scale per tensor or row; remove it, or set a "
    "granularity in diffusers' own form: quant_mapping with quant_method torchao",
    "ignored_layers": "the short form quantizes every linear layer; name the layers to leave out "
    "as modules_to_not_convert in diffusers' own form: quant_mapping with quant_method torchao",
    "modules_to_not_convert": "the short form quantizes every linear layer; name these layers in "
    "diffusers' own form: quant_mapping with quant_method torchao",
}
"""Keys that others have beside the method: refused when they ask for anything."""


def read_method(given: Any) -> Method:
    """Read the short form: a name, or {"method": name}. Raises ConfigError saying what to use."""
    if isinstance(given, dict):
        return _read_object(given)
    if not isinstance(given, str):
        raise ConfigError(f'{given!r} is no method; write int8, or {{"method": "int8"}}')
    name = given.strip().lower().replace("-", "_")
    if reason := REFUSED.get(name):
        raise ConfigError(f"method '{given}' is not served: {reason}")
    if name not in METHODS:
        raise ConfigError(unknown("method", given, "triton-diffusers", METHODS))
    return METHODS[name]


def _read_object(given: Mapping[str, Any]) -> Method:
    accepted = ("method", "activation_scheme", *KEYS)
    for key, value in given.items():
        if key not in accepted:
            raise ConfigError(unknown("key", key, "the short form", ["method"]))
        if key in KEYS and value:
            raise ConfigError(f"{key} is not served: {KEYS[key]}")
    if "method" not in given:
        raise ConfigError(
            f'the method is missing; write {{"method": "int8"}}, or one of {", ".join(METHODS)}'
        )
    method = read_method(given["method"])
    scheme = given.get("activation_scheme")
    if scheme is not None and (scheme != "dynamic" or not method.dynamic):
        raise ConfigError(_wrong_scheme(scheme, method))
    return method


def _wrong_scheme(scheme: Any, method: Method) -> str:
    if method.dynamic:
        return (
            f"activation_scheme {scheme!r} is not served: it needs a calibrated checkpoint; "
            "remove it, which means dynamic"
        )
    dynamic = [name for name, m in METHODS.items() if m.dynamic]
    return (
        f"activation_scheme {scheme!r} has no effect on {method.name}, which leaves activations as "
        f"they are; remove it, or use {' or '.join(dynamic)}"
    )
