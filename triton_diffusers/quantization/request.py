# SPDX-License-Identifier: Apache-2.0
"""What an entry asks for in quantization: which of its two forms, for which components."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from triton_diffusers.config.options import ServeConfig, named
from triton_diffusers.errors import ConfigError
from triton_diffusers.quantization.methods import DENOISERS, METHODS, Method, read_method
from triton_diffusers.quantization.native import NATIVE_KEYS, NativeForm, read_native

OPTION = "parameter 'quantization_config'"
NATIVE_OPTION = "diffusers_load_kwargs.quantization_config"


@dataclass(frozen=True)
class Request:
    """Checked without torch. method: of the short form. where: the option that it stands in."""

    form: NativeForm
    method: Method | None
    where: str
    warnings: tuple[str, ...]

    @property
    def torchao_classes(self) -> list[str]:
        """Return the names of torchao's config classes in it."""
        given = (torchao_class(config) for config in self.form.configs.values())
        return list(dict.fromkeys(name for name in given if name is not None))

    def describe(self) -> str:
        """Return the method as the log and `info` tell it."""
        if self.method:
            return self.method.describe()
        methods = (
            " ".join(filter(None, (str(c["quant_method"]), torchao_class(c))))
            for c in self.form.configs.values()
        )
        return ", ".join(dict.fromkeys(methods))


def read_quantization(
    config: ServeConfig, components: Mapping[str, str], pipeline_class: str
) -> Request | None:
    """Return what an entry asks for, or None. Raises ConfigError naming the option.

    components: those that the pipeline will have -> their classes.
    """
    native = (config.diffusers_load_kwargs or {}).get("quantization_config")
    short = config.quantization_config
    if native is None and short is None:
        return None
    warnings = []
    if native is not None and short is not None:
        warnings.append(f"{OPTION} is not used: {NATIVE_OPTION} wins; remove one of them")
    where = OPTION if native is None else NATIVE_OPTION
    try:
        if native is not None and _is_short(native):
            raise ConfigError(f"{native!r} is the short form; set it as {OPTION} instead")
        given = short if native is None else native
        method = read_method(given) if _is_short(given) else None
        if method:
            form = _short_form(method, config, components, pipeline_class)
        else:
            form = read_native(given, components, pipeline_class)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return Request(form, method, where, (*warnings, *_slow(form, config)))


def torchao_class(given: Mapping[str, Any]) -> str | None:
    """Return the torchao class that a component's config names; None where it is not torchao's."""
    if given.get("quant_method") != "torchao":
        return None
    named = given.get("quant_type")
    if isinstance(named, dict):
        inner = named.get("default", named)
        named = inner.get("_type") if isinstance(inner, dict) else None
    return named if isinstance(named, str) else ""


def _is_short(given: Any) -> bool:
    if isinstance(given, dict):
        return not {*NATIVE_KEYS, "quant_method"} & set(given)
    return isinstance(given, str)


def _short_form(
    method: Method, config: ServeConfig, components: Mapping[str, str], pipeline_class: str
) -> NativeForm:
    _check_model(config)
    _check_offload(method, config)
    chosen = [name for name in DENOISERS if name in components]
    if not chosen:
        raise ConfigError(
            f"{pipeline_class} has none of {', '.join(DENOISERS)}, which '{method.name}' "
            "quantizes; name its models in diffusers' own form: "
            f'{{"quant_mapping": {{NAME: {{"quant_method": "torchao", "quant_type": '
            f'"{method.config_class}"}}}}}}. It has: {", ".join(components) or "none"}'
        )
    # Settings of the compiler are the process's, and older torchao also lowers the precision of
    # all float32 products with them: only where something is compiled.
    arguments = {**method.arguments, "set_inductor_config": config.torch_compile != "off"}
    given = {
        "quant_method": "torchao",
        "quant_type": method.config_class,
        "quant_type_kwargs": arguments,
    }
    return NativeForm(dict.fromkeys(chosen, given), must_hold="present")


def _check_model(config: ServeConfig) -> None:
    named = (config.model, (config.diffusers_load_kwargs or {}).get("dduf_file"))
    if any(PurePath(name).suffix == ".dduf" for name in named if isinstance(name, str)):
        raise ConfigError(
            "a DDUF file does not tell its components before it is loaded; save the pipeline as a "
            "folder with save_pretrained() and name that as model"
        )


def _check_offload(method: Method, config: ServeConfig) -> None:
    for option in named("moves_weights") if method.on_gpu else ():
        if getattr(config, option):
            raise ConfigError(
                f"{method.name} does not go with parameter '{option}': its weights are packed on "
                f"the GPU while they load; remove it, or {method.instead}"
            )


def _slow(form: NativeForm, config: ServeConfig) -> Iterator[str]:
    """Warn of what is slower than no quantization as long as nothing is compiled."""
    classes = {torchao_class(given) for given in form.configs.values()}
    for row in METHODS.values() if config.torch_compile == "off" else ():
        if row.slow and row.config_class in classes:
            yield (
                f"{row.name} quantizes activations at each call, which is slow without "
                f"compilation ({row.slow}): set torch_compile to regional, or "
                f"use {row.name}_weight_only"
            )
