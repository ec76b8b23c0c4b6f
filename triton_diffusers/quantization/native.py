# SPDX-License-Identifier: Apache-2.0
"""A quantization config in diffusers' own terms, as JSON -> `PipelineQuantizationConfig`.

Both forms end as one config per component, each made with the class of the library that the
component comes from. diffusers itself refuses `quant_backend` for torchao and quanto, because its
class takes other arguments than transformers' class of that name; a mapping has no such trouble.
"""

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.pipelines.packages import install
from triton_diffusers.quantization.torchao import (
    GRANULARITY,
    build_torchao,
    read_torchao,
    torch_dtype,
)

NATIVE_KEYS = ("quant_backend", "quant_kwargs", "components_to_quantize", "quant_mapping")
EXAMPLE = (
    '{"quant_mapping": {"transformer": {"quant_method": "torchao", "quant_type": '
    '"Int8WeightOnlyConfig"}}}'
)
ONE_COMPONENT = (
    ' A method is named as {"method": NAME}; the config of one component stands under its name in '
    "quant_mapping."
)
PACKAGES = {
    "auto-round": ("auto_round", "auto-round"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "gguf": ("gguf", "gguf"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "modelopt": ("modelopt", "nvidia-modelopt[hf]"),
    "nunchaku_lite": ("kernels", "kernels"),
    "quanto": ("optimum.quanto", "optimum-quanto"),
    "sdnq": ("sdnq", "sdnq"),
    "torchao": ("torchao", "torchao"),
}
"""quant_method -> the module that it imports, and that module's name in pip."""
PREQUANTIZED = ("bfl", "gguf", "nunchaku_lite")
"""Methods that only read checkpoints of their own format."""
FREE = ("auto-round", "modelopt", "nunchaku_lite", "sdnq")
"""Methods whose config classes pass further arguments on; the others would drop them unsaid."""
LEAVE_OUT = ("modules_to_not_convert", "llm_int8_skip_modules")
"""Arguments that name modules of the component which are to stay as they are."""


@dataclass(frozen=True)
class NativeForm:
    """What the operator wrote: the config of each component, still as JSON.

    must_hold: which components must hold quantized weights after loading: every one that is
    `named`, every one `present` in the pipeline, or `any` of them (the operator named none).
    """

    configs: dict[str, dict[str, Any]]
    must_hold: str


def read_native(given: Any, components: Mapping[str, str], pipeline_class: str) -> NativeForm:
    """Check the outer form without loading torch. Raises ConfigError with the near miss."""
    if not isinstance(given, dict):
        raise ConfigError(f"{given!r} is no quantization config; write one such as {EXAMPLE}")
    for key in given:
        if key not in NATIVE_KEYS:
            hint = ONE_COMPONENT if "quant_method" in given else ""
            raise ConfigError(unknown("key", key, "a pipeline's quantization", NATIVE_KEYS) + hint)
    mapping, backend = given.get("quant_mapping"), given.get("quant_backend")
    if (mapping is None) == (backend is None):
        raise ConfigError(f"give either quant_backend or quant_mapping, such as {EXAMPLE}")
    form = _from_backend(given, components) if mapping is None else _from_mapping(given)
    for component in form.configs:
        if component not in components:
            raise ConfigError(unknown("component", component, pipeline_class, components))
    return form


def _from_mapping(given: Mapping[str, Any]) -> NativeForm:
    mapping = given["quant_mapping"]
    for key in ("quant_kwargs", "components_to_quantize"):
        if given.get(key) is not None:
            raise ConfigError(f"{key} goes with quant_backend, not with quant_mapping; remove it")
    if not isinstance(mapping, dict) or not mapping:
        raise ConfigError(f"quant_mapping must name components, such as {EXAMPLE}")
    for component, config in mapping.items():
        if not isinstance(config, dict) or not isinstance(config.get("quant_method"), str):
            raise ConfigError(
                f"quant_mapping, component '{component}': needs a JSON object with quant_method, "
                f"such as {EXAMPLE}"
            )
        left_out(component, config)
    configs = {n: {**c, "quant_method": _known(c["quant_method"])} for n, c in mapping.items()}
    return NativeForm(configs, "named")


def _from_backend(given: Mapping[str, Any], components: Mapping[str, str]) -> NativeForm:
    backend, kwargs = given["quant_backend"], given.get("quant_kwargs")
    named = given.get("components_to_quantize")
    if not isinstance(backend, str):
        raise ConfigError(f"quant_backend {backend!r} is no name; write one such as torchao")
    if not isinstance(kwargs, dict) or not kwargs:
        raise ConfigError(
            f"quant_backend '{backend}' needs quant_kwargs, such as "
            '{"quant_type": "Int8WeightOnlyConfig"} for torchao'
        )
    names = [named] if isinstance(named, str) else named
    if names is not None and not (isinstance(names, list) and names):
        raise ConfigError("components_to_quantize must be a list of component names")
    chosen = list(components) if names is None else [str(name) for name in names]
    configs = {name: {**kwargs, "quant_method": _known(backend)} for name in chosen}
    left_out(", ".join(chosen), kwargs)
    return NativeForm(configs, "any" if names is None else "named")


def _known(method: str) -> str:
    """Return a method's name as diffusers spells it, where it is written in capitals."""
    return method.lower() if method.lower() in (*PACKAGES, *PREQUANTIZED) else method


def left_out(component: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a component's config leaves out. Raises ConfigError for no names."""
    names: list[str] = []
    for key in LEAVE_OUT:
        value = given.get(key)
        listed = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(listed, list) or not all(isinstance(n, str) and n for n in listed):
            raise ConfigError(
                f"component '{component}': {key} {value!r} is no list of module names; write one "
                'such as ["proj_out"]'
            )
        names += listed
    return tuple(names)


def build_native(form: NativeForm, components: Mapping[str, str]) -> Any:
    """Return diffusers' `PipelineQuantizationConfig`, which checks it once more.

    Raises ConfigError, in one line, for what diffusers, transformers or torchao refuse.
    """
    from diffusers import PipelineQuantizationConfig

    configs = {}
    for component, given in form.configs.items():
        library = find_library(components[component])
        if library is None:
            if form.must_hold != "any":
                raise ConfigError(
                    f"component '{component}' ({components[component]}) is no model and cannot be "
                    "quantized; name a model such as transformer"
                )
            continue
        try:
            configs[component] = _build(given, library)
        except ConfigError as error:
            raise ConfigError(f"component '{component}': {error}") from None
    try:
        return PipelineQuantizationConfig(quant_mapping=configs)
    except (TypeError, ValueError) as error:
        raise ConfigError(one_line(error)) from None


def find_library(class_name: str) -> str | None:
    """Return whose quantization configs a component takes; None where it is no model.

    class_name: of a constructor it may be several, joined by " or ".
    """
    import diffusers
    import torch
    import transformers

    for cls in _classes_named(class_name.partition(" or ")[0], diffusers, transformers):
        if issubclass(cls, diffusers.ModelMixin):
            return "diffusers"
        return "transformers" if issubclass(cls, torch.nn.Module) else None
    return "diffusers"


def _classes_named(name: str, *libraries: Any) -> Iterator[type]:
    """Yield the classes of that name: what libraries export, then what pipelines keep inside."""
    for library in libraries:
        if isinstance(cls := getattr(library, name, None), type):
            yield cls
    for module in [m for n, m in sys.modules.items() if n.startswith("diffusers.")]:
        if isinstance(cls := vars(module).get(name), type):
            yield cls


def _build(given: Mapping[str, Any], library: str) -> Any:
    """Return one component's config, made with its library's own class."""
    classes = importlib.import_module(f"{library}.quantizers.auto").AUTO_QUANTIZATION_CONFIG_MAPPING
    kwargs = {name: value for name, value in given.items() if name != "quant_method"}
    method = str(given["quant_method"])
    if method == "bitsandbytes":
        if not (kwargs.get("load_in_4bit") or kwargs.get("load_in_8bit")):
            raise ConfigError("bitsandbytes needs load_in_8bit or load_in_4bit; set one to true")
        method += "_4bit" if kwargs.get("load_in_4bit") else "_8bit"
    if method not in classes:
        raise ConfigError(unknown("quant_method", method, library, classes))
    if method in PREQUANTIZED:
        raise ConfigError(
            f"quant_method {method} only reads checkpoints of its own format and quantizes nothing "
            "while a pipeline loads; use torchao, bitsandbytes or quanto"
        )
    require_package(method.partition("_4bit")[0].partition("_8bit")[0])
    if method.startswith("bitsandbytes"):
        kwargs.setdefault(f"load_in{method.removeprefix('bitsandbytes')}", True)
    for key in LEAVE_OUT:
        if isinstance(kwargs.get(key), str):
            kwargs[key] = [kwargs[key]]
    if method == "torchao":
        kwargs["quant_type"] = _torchao_type(kwargs)
    accepted = inspect.signature(classes[method].__init__).parameters.keys() - {"self", "kwargs"}
    for name in kwargs if method not in FREE else ():
        if name not in accepted:
            raise ConfigError(unknown("argument", name, f"quant_method {method}", accepted))
    try:
        return classes[method](**{name: _value(name, value) for name, value in kwargs.items()})
    except Exception as error:  # each library has errors of its own
        raise ConfigError(f"quant_method {method}: {one_line(error)}") from None


def require_package(method: str) -> None:
    """Raise ConfigError naming what to install where a method's package is missing."""
    module, package = PACKAGES.get(method, ("", ""))
    try:
        found = not module or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        found = False
    if not found:
        raise ConfigError(f"quant_method {method} needs a missing package; {install(package)}")


def _torchao_type(kwargs: dict[str, Any]) -> Any:
    """Take quant_type and its arguments out of `kwargs` and make them torchao's config."""
    given, arguments = kwargs.pop("quant_type", None), kwargs.pop("quant_type_kwargs", {})
    if isinstance(given, dict) and list(given) == ["default"]:
        given = given["default"]
    if isinstance(given, dict) and "_type" in given and not arguments:
        return read_torchao(given)
    if not isinstance(given, str) or not isinstance(arguments, dict):
        name = next(iter(given)) if isinstance(given, dict) and len(given) == 1 else None
        raise ConfigError(
            "torchao needs quant_type, the name of one of its config classes, and takes their "
            f'arguments as quant_type_kwargs: "quant_type": "{name or "Int8WeightOnlyConfig"}", '
            f'"quant_type_kwargs": {{{GRANULARITY}}}'
        )
    return build_torchao(given, arguments)


def _value(name: str, value: Any) -> Any:
    """Turn the name of a torch dtype into the dtype, where one is meant."""
    if isinstance(value, str) and (value.startswith("torch.") or name.endswith("compute_dtype")):
        return torch_dtype(value)
    return value
