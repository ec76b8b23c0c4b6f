# SPDX-License-Identifier: Apache-2.0
"""Quantize a pipeline's models while it loads: checked before, verified on the live weights after.

Two forms are read: a method's name (methods.py), and diffusers' own config
(native.py). Torch and torchao are imported by `plan_quantization` and later.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, near_miss
from triton_diffusers.pipelines.packages import install
from triton_diffusers.quantization.methods import METHODS, Method
from triton_diffusers.quantization.native import build_native, left_out
from triton_diffusers.quantization.request import Request, read_quantization, torchao_class
from triton_diffusers.quantization.torchao import import_torchao
from triton_diffusers.quantization.weight_bytes import count_bytes


@dataclass(frozen=True)
class Quantization:
    """What is quantized while a pipeline loads.

    config: diffusers' PipelineQuantizationConfig, for from_pretrained(). must_hold: which of
    `components` must hold quantized weights then, see `NativeForm`. on_gpu: the weights must be on
    the GPU when they are quantized (`device_map`), not be moved there later. left_out: by
    component, the modules that are to stay as they are.
    """

    config: Any
    components: tuple[str, ...]
    method: str
    warnings: tuple[str, ...] = ()
    must_hold: str = "named"
    on_gpu: bool = False
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def check_quantization(
    config: ServeConfig, components: Mapping[str, str], pipeline_class: str
) -> list[str]:
    """Check what needs neither torch nor the device; return what to warn of.

    components: those that the pipeline will have -> their classes. Raises ConfigError, in one
    line, with the way out.
    """
    request = read_quantization(config, components, pipeline_class)
    if request is None:
        return []
    missing = []
    if request.torchao_classes and importlib.util.find_spec("torchao") is None:
        missing = [f"{request.where} needs the package torchao; {install('torchao')}"]
    return [*request.warnings, *missing]


def plan_quantization(
    config: ServeConfig, components: Mapping[str, str], pipeline_class: str, device: str
) -> Quantization | None:
    """Return what from_pretrained() needs, or None where nothing is to be quantized.

    Its warnings are those that `check_quantization` cannot know. Raises ConfigError, in one line,
    also where the device or the installed packages cannot do it.
    """
    request = read_quantization(config, components, pipeline_class)
    if request is None:
        return None
    try:
        if request.torchao_classes:
            import_torchao()
        _check_device(request, device)
        _check_dtype(request, config, device)
        built = build_native(request.form, components)
    except ConfigError as error:
        raise ConfigError(f"{request.where}: {error}") from None
    return Quantization(
        config=built,
        components=tuple(built.quant_mapping),
        method=request.describe(),
        warnings=tuple(_dtype_warnings(request, config, device)),
        must_hold=request.form.must_hold,
        on_gpu=bool(request.method and request.method.on_gpu),
        left_out={name: left_out(name, given) for name, given in request.form.configs.items()},
    )


def verify_quantization(pipeline: Any, quantization: Quantization) -> dict[str, tuple[int, int]]:
    """Return component -> bytes at the dtype that was loaded, bytes now.

    Raises ConfigError for a component that holds no quantized weight, or whose checkpoint was
    quantized already: diffusers would use the checkpoint's own way without a word. So too for a
    module to leave out that the component does not have.
    """
    found = {}
    for name in quantization.components:
        model = getattr(pipeline, name, None)
        if getattr(getattr(model, "hf_quantizer", None), "pre_quantized", False):
            raise ConfigError(
                f"component '{name}': its checkpoint is quantized already, and loads that way; "
                "remove quantization_config, or name the unquantized model"
            )
        counted = None if model is None else count_bytes(model)
        if counted and counted.quantized:
            found[name] = (counted.before, counted.after)
        elif quantization.must_hold == "named" or (counted and quantization.must_hold != "any"):
            raise ConfigError(
                f"component '{name}' holds no quantized weights after loading with "
                f"{quantization.method}: it has no linear layers, or none of a size that the "
                "method takes; use another method, or remove quantization_config"
            )
    if not found:
        raise ConfigError(f"nothing was quantized by {quantization.method}; use another method")
    _check_left_out(pipeline, quantization.left_out)
    return found


def _check_left_out(pipeline: Any, left_out: Mapping[str, tuple[str, ...]]) -> None:
    """Raise ConfigError for a name that is a module of none of the components that leave it out."""
    models = {name: model for name in left_out if (model := getattr(pipeline, name, None))}
    for component, model in models.items():
        for given in left_out[component]:
            if any(_names_module(given, m) for c, m in models.items() if given in left_out[c]):
                continue
            modules = [name for name, _ in model.named_modules() if name]
            raise ConfigError(
                f"component '{component}': modules_to_not_convert '{given}' names no module of "
                f"{type(model).__name__}.{near_miss(given, modules)} Remove it, or name one such "
                f"as '{modules[-1]}'"
            )


def _names_module(given: str, model: Any) -> bool:
    """Tell whether diffusers (part of a weight's name) or transformers (regex, end) would match."""
    if any(given == w or f"{given}." in w for w, _ in model.named_parameters()):
        return True
    try:
        return any(n.endswith(given) or re.match(given, n) for n, _ in model.named_modules() if n)
    except re.error:
        return False


def _check_device(request: Request, device: str) -> None:
    """Raise ConfigError where a method's kernels do not run on the device."""
    for given in request.form.configs.values():
        for row in METHODS.values():
            if _is_row(row, given) and (reason := row.unavailable(device)):
                raise ConfigError(f"'{row.name}' cannot work here: {reason}; {row.instead}")


def _is_row(row: Method, given: Mapping[str, Any]) -> bool:
    """Tell whether a component's config is what a method stands for, written out or not."""
    arguments = given.get("quant_type_kwargs")
    arguments = arguments if isinstance(arguments, dict) else {}
    return row.config_class == torchao_class(given) and all(
        arguments.get(name) == value for name, value in row.arguments.items()
    )


def _check_dtype(request: Request, config: ServeConfig, device: str) -> None:
    method = request.method
    for component in request.form.configs if method and method.dtypes else ():
        dtype = _load_dtype(config, component, device)
        if method and dtype not in method.dtypes:
            raise ConfigError(
                f"{method.name} needs dtype {' or '.join(method.dtypes)}, and '{component}' loads "
                f"as {dtype}; set dtype, or {method.instead}"
            )


def _dtype_warnings(request: Request, config: ServeConfig, device: str) -> Iterator[str]:
    """Warn of what torchao was not made for; on a CPU all three dtypes were tried and work."""
    for component, given in request.form.configs.items() if device != "cpu" else ():
        dtype = _load_dtype(config, component, device)
        if (torchao_class(given) or "").startswith("Int") and dtype != "bfloat16":
            yield f"component '{component}' loads as {dtype}: torchao's int methods want bfloat16"


def _load_dtype(config: ServeConfig, component: str, device: str) -> str:
    kwargs = config.diffusers_load_kwargs or {}
    given: Any = kwargs.get("dtype", kwargs.get("torch_dtype", config.dtype))
    if isinstance(given, dict):
        given = given.get(component, given.get("default", "auto"))
    name = str(given).removeprefix("torch.")
    on_cpu = device.partition(":")[0] == "cpu"
    return name if name != "auto" else "float32" if on_cpu else "bfloat16"
