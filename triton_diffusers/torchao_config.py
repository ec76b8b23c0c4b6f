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
from triton_diffusers.load_errors import install

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int4", "int8")
"""Offered where another name is no dtype of torch."""


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

    cls: Any = getattr(torchao, name, None)
    if not _is_config(cls, AOBaseConfig):
        known = [n for n, c in vars(torchao).items() if _is_config(c, AOBaseConfig)]
        known = [n for n in known if n.endswith("Config")]
        raise ConfigError(unknown("torchao config", name, _version(), known))
    fields = {field.name for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for argument in arguments:
        if argument not in fields:
            raise ConfigError(unknown("argument", argument, name, fields))
    try:
        made = cls(**{n: _read(value, hints[n], torchao) for n, value in arguments.items()})
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"torchao {name}: {one_line(error)}") from None
    _check_int4_package(made)
    return made


def read_torchao(written: Mapping[str, Any]) -> Any:
    """Read the form in which diffusers and torchao save a config. Raises ConfigError."""
    import_torchao()
    from torchao.core.config import AOBaseConfig, config_from_dict

    try:
        config = config_from_dict(dict(written))
    except Exception as error:  # whatever the named class raises
        raise ConfigError(f"torchao config: {one_line(error)}") from None
    if not isinstance(config, AOBaseConfig):
        raise ConfigError(f"torchao config: {written.get('_type')} is none; name one such as "
                          "Int8WeightOnlyConfig")  # fmt: skip
    return config


def _check_int4_package(config: Any) -> None:
    """Raise ConfigError where the chosen packing of int4 needs a package that is not there."""
    packing = getattr(config, "int4_packing_format", None)
    if packing in ("plain", "preshuffled") and importlib.util.find_spec("mslk") is None:
        raise ConfigError(
            f"int4_packing_format {packing.value} needs a missing package; {install('mslk')}, or "
            "choose tile_packed_to_4d"
        )


def _is_config(cls: Any, base: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, base) and cls is not base


def _version() -> str:
    return f"torchao {importlib.metadata.version('torchao')}"


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
