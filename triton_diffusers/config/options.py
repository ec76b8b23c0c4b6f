# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig`: what an entry's config.pbtxt `parameters` say, read by declared type."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_diffusers.config.declared import ModelOptions, ServingOptions
from triton_diffusers.config.text import check_value, read_option, write_option
from triton_diffusers.config.unsupported import refusal
from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.families import declared_options
from triton_diffusers.families.option import Traits

if TYPE_CHECKING:

    class _Declared(ServingOptions, ModelOptions):
        """The families' options are not among these: only their own files name them."""

else:
    # the fields of the last base come first
    _Declared = type("_Declared", (ServingOptions, *reversed(declared_options()), ModelOptions), {})


@dataclass(frozen=True, kw_only=True)
class ServeConfig(_Declared):
    """The load-time options of one entry. `None` means: not set, key left out of config.pbtxt."""

    def to_parameters(self) -> dict[str, str]:
        """Return the options that differ from their default as config.pbtxt text."""
        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: write_option(value) for f, value in values if value != f.default}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "ServeConfig":
        """Read config.pbtxt text. Raises ConfigError for an unknown key or a wrong value."""
        options = {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, text in parameters.items():
            if reason := refusal(key):
                raise ConfigError(f"parameter {reason}")
            if key not in options:
                raise ConfigError(unknown("parameter", key, "triton-diffusers", options))
            values[key] = read_option(options[key], text)
        config = cls(**values)
        if not config.model:
            raise ConfigError("parameter 'model' is missing: name a hub id or a folder")
        return config

    @property
    def is_quantized(self) -> bool:
        """Whether the entry asks for quantization: here, or as an argument of from_pretrained()."""
        native = (self.diffusers_load_kwargs or {}).get("quantization_config")
        return self.quantization_config is not None or native is not None

    def lifted(self) -> "ServeConfig":
        """Return the config with what `diffusers_load_kwargs` says of our own options moved there.

        So that both places mean the same, checks included. Raises ConfigError for a wrong value.
        """
        given = dict(self.diffusers_load_kwargs or {})
        if "dtype" in given and "torch_dtype" in given:
            raise ConfigError(
                "diffusers_load_kwargs: dtype and torch_dtype mean the same: give one"
            )
        if "torch_dtype" in given:
            given["dtype"] = given.pop("torch_dtype")
        fields = {f.name: f for f in dataclasses.fields(self)}
        moved = {}
        for name in [n for n in named("argument") if n in given]:
            value = given.pop(name)
            if name == "dtype" and isinstance(value, str):
                value = value.removeprefix("torch.")
            if value is None:
                value = fields[name].default
            else:
                try:
                    check_value(fields[name], value, repr(value))
                except ConfigError as error:
                    raise ConfigError(f"diffusers_load_kwargs: {error}") from None
            moved[name] = value
        return dataclasses.replace(self, diffusers_load_kwargs=given or None, **moved)

    def given_twice(self) -> list[str]:
        """Return a warning for each option that `diffusers_load_kwargs` sets to something else."""
        lifted = self.lifted()
        return [
            f"'{f.name}' is given twice: {getattr(lifted, f.name)!r} of diffusers_load_kwargs wins"
            for f in dataclasses.fields(self)
            if traits(f).argument
            if getattr(self, f.name) not in (f.default, getattr(lifted, f.name))
        ]


def options() -> tuple[dataclasses.Field[Any], ...]:
    """Return every load-time option; `metadata` is what `option` of families/option.py took."""
    return dataclasses.fields(ServeConfig)


def traits(option: "dataclasses.Field[Any]") -> Traits:
    """Return what an option is to those who treat several alike."""
    found: Traits = option.metadata["traits"]
    return found


def named(trait: str, *values: Any) -> tuple[str, ...]:
    """Return the options that have a trait, or have one of these values of it, as declared."""
    found = ((f.name, getattr(traits(f), trait)) for f in options())
    return tuple(name for name, value in found if (value in values if values else bool(value)))
