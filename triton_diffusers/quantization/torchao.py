# SPDX-License-Identifier: Apache-2.0
"""A torchao config class named in JSON, with its arguments -> an instance of it."""

import dataclasses
import enum
import importlib.metadata
import importlib.util
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.pipelines.packages import install

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int4", "int8")
"""Offered where another name is no dtype of torch."""
GRANULARITY = '"granularity": {"_type": "PerGroup", "_data": {"group_size": 32}}'
"""How torchao writes a group size; what its classes once took as group_size."""
CALIBRATED: Mapping[str, str] = {
    "Float8StaticActivationFloat8WeightConfig": "Float8DynamicActivationFloat8WeightConfig",
    "Int8StaticActivationInt8WeightConfig": "Int8DynamicActivationInt8WeightConfig",
}
"""Classes whose activation scales come from calibration -> what needs none."""


def import_torchao() -> Any:
    """Return `torchao.quantization`. Raises ConfigError naming what to install."""
    try:
        import torchao.quantization
    except ImportError as error:
        told = "" if isinstance(error, ModuleNotFoundError) else f" ({one_line(error)})"
        raise ConfigError(
            f"quantization_config needs the package torchao{told}; {install('torchao')}"
        ) from None
    return torchao.quantization


def build_torchao(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return torchao's config class of that name, made with arguments that JSON can carry.

    A dtype or an enum is given by its name, a granularity by its class ("PerRow"), or as torchao
    itself writes it: {"_type": "PerGroup", "_data": {"group_size": 32}}.
    Raises ConfigError with the near miss.
    """
    torchao = import_torchao()
    from torchao.core.config import AOBaseConfig

    cls: Any = getattr(torchao, name, None) if name.endswith("Config") else None
    if not _is_config(cls, AOBaseConfig):
        known = [n for n, c in vars(torchao).items() if _is_config(c, AOBaseConfig)]
        known = [n for n in known if n.endswith("Config") and n not in CALIBRATED]
        raise ConfigError(unknown("torchao config", name, _version(), known))
    _check_class(name)
    fields = {field.name for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for argument in arguments:
        if argument not in fields:
            raise ConfigError(unknown("argument", argument, name, fields))
    read = {n: _argument(name, n, value, hints[n], torchao) for n, value in arguments.items()}
    try:
        made = cls(**read)
    except Exception as error:  # some classes check with assert, some not at all
        if arguments.get("group_size") is not None and "granularity" in fields:
            raise ConfigError(_group_size(name, arguments["group_size"])) from None
        raise ConfigError(f"torchao {name}: {one_line(error)}") from None
    _check_int4_package(made)
    return made


def read_torchao(written: Mapping[str, Any]) -> Any:
    """Read the form in which diffusers and torchao save a config. Raises ConfigError."""
    import_torchao()
    from torchao.core.config import AOBaseConfig, config_from_dict

    name, data = str(written["_type"]), written.get("_data")
    _check_class(name)
    try:
        config = config_from_dict(dict(written))
    except Exception as error:  # whatever the named class raises
        if isinstance(data, dict) and data.get("group_size") is not None:
            raise ConfigError(_group_size(name, data["group_size"])) from None
        raise ConfigError(f"torchao config: {one_line(error)}") from None
    if not isinstance(config, AOBaseConfig):
        raise ConfigError(f"torchao config: {written.get('_type')} is none; name one such as "
                          "Int8WeightOnlyConfig")  # fmt: skip
    return config


def _check_class(name: str) -> None:
    if instead := CALIBRATED.get(name):
        raise ConfigError(
            f"torchao {name} needs scales of the activations, which only a calibration gives; "
            f"use {instead}, which takes them at each call"
        )


def _group_size(name: str, given: Any) -> str:
    size = given if isinstance(given, int) else 32
    return (
        f"torchao {name} takes no group_size {given!r} but a granularity; write "
        f'"quant_type": "{name}", "quant_type_kwargs": {{{GRANULARITY.replace("32", str(size))}}}'
    )


def _check_int4_package(config: Any) -> None:
    """Raise ConfigError where the chosen packing of int4 needs a package that is not there."""
    packing = getattr(config, "int4_packing_format", None)
    name = str(getattr(packing, "value", packing))
    if name in ("plain", "preshuffled") and importlib.util.find_spec("mslk") is None:
        weight_only = type(config).__name__ == "Int4WeightOnlyConfig"
        instead = "choose tile_packed_to_4d" if weight_only else "use Int8WeightOnlyConfig"
        raise ConfigError(
            f"int4_packing_format {name} needs a missing package; {install('mslk')}, or {instead}"
        )


def _is_config(cls: Any, base: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, base) and cls is not base


def _version() -> str:
    return f"torchao {importlib.metadata.version('torchao')}"


def _argument(name: str, argument: str, value: Any, hint: Any, torchao: Any) -> Any:
    """Read one argument of a class. Raises ConfigError for a value of another type than its own."""
    try:
        read = _read(value, hint, torchao)
    except ConfigError:
        raise
    except Exception as error:  # of a class that is named inside, such as a granularity
        raise ConfigError(
            f"torchao {name}: {argument} {value!r} cannot be read: {one_line(error)}; a group size "
            f"is written as {GRANULARITY}"
        ) from None
    kinds = [kind for kind in _classes(hint) if kind is not type(None)]
    plain = [kind for kind in kinds if kind in (bool, int, float)]
    if plain and len(plain) == len(kinds) and read is not None and type(read) not in plain:
        words = " or ".join(kind.__name__ for kind in plain)
        raise ConfigError(f"torchao {name}: {argument} {value!r} is no {words}")
    if name.startswith("Float8") and argument == "weight_dtype" and "float8" not in str(read):
        raise ConfigError(
            f"torchao {name}: {argument} {value!r} is no 8-bit float; write float8_e4m3fn"
        )
    return read


def _read(value: Any, hint: Any, torchao: Any) -> Any:
    if isinstance(value, list):
        return [_read(item, hint, torchao) for item in value]
    if isinstance(value, dict) and "_type" in value:
        from torchao.core.config import config_from_dict

        return config_from_dict(value)
    if not isinstance(value, str):
        return value
    for kind in _classes(hint):
        if kind.__module__ == "torch" and kind.__name__ == "dtype":
            return torch_dtype(value)
        if issubclass(kind, enum.Enum):
            return _enum_member(kind, value)
    granularity = getattr(torchao, value, None)
    return granularity() if isinstance(granularity, type) else value


def torch_dtype(name: str) -> Any:
    """Return the torch dtype of that name, "torch." in front or not. Raises ConfigError."""
    import torch

    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(unknown("dtype", name, "torch", DTYPES))
    return dtype


def _enum_member(kind: type[enum.Enum], name: str) -> enum.Enum:
    for member in kind:
        if name.lower() in (member.name.lower(), str(member.value).lower()):
            return member
    raise ConfigError(unknown("value", name, kind.__name__, [m.name for m in kind]))


def _classes(hint: Any) -> Iterator[type]:
    """Yield the plain classes that a type hint names."""
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _classes(part)
