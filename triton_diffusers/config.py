# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig`: what an entry's config.pbtxt `parameters` say, read by declared type."""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.json_text import read_json_object

DTYPES = ("auto", "bfloat16", "float16", "float32")
DEVICE = (r"(cpu|cuda|xpu|npu|mps)(:\d+)?", "cpu, cuda, cuda:N, xpu, npu or mps")
"""The form of a device's name, and that form in words."""


def _option(
    about: str,
    default: Any = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    form: tuple[str, str] | None = None,
) -> Any:
    return dataclasses.field(
        default=default,
        metadata={
            "about": about,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "form": form,
        },
    )


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The load-time options of one entry. `None` means: not set, key left out of config.pbtxt."""

    model: str = _option("Hub id or folder; a relative path is relative to the entry.", "")
    pipeline_class: str | None = _option(
        "The diffusers pipeline class; without it model_index.json names it."
    )
    diffusers_version: str | None = _option("The diffusers that the entry was written for.")
    revision: str | None = _option("Branch, tag or commit of a hub model.")
    variant: str | None = _option("Weight file variant, such as fp16.")
    dtype: str = _option(
        "Floating-point type of the weights; auto: bfloat16 on a GPU, float32 on a CPU.",
        "auto",
        choices=DTYPES,
    )
    device: str | None = _option(
        "Device such as cuda:1 or cpu; without it the instance's own.", form=DEVICE
    )
    generator_device: str = _option(
        "Where seeds are drawn; cpu gives the same picture on any hardware.", "cpu", form=DEVICE
    )
    diffusers_load_kwargs: dict[str, Any] | None = _option(
        "JSON object: further arguments of from_pretrained()."
    )
    diffusers_call_kwargs: dict[str, Any] | None = _option(
        "JSON object: defaults for arguments of the pipeline's __call__; a request's inputs win."
    )
    boundary_ratio: float | None = _option(
        "Wan 2.2: where the second transformer takes over, 0 to 1.", minimum=0, maximum=1
    )
    flow_shift: float | None = _option("Wan: flow shift of the UniPC scheduler.")
    vae_use_slicing: bool = _option("Decode a batch one image at a time, to save memory.", False)
    vae_use_tiling: bool = _option("Decode large images in tiles, to save memory.", False)
    cpu_threads: int | None = _option("torch threads of the instance.", minimum=1)
    max_queue: int = _option("Requests that may wait; further ones get UNAVAILABLE.", 64, minimum=1)
    max_steps: int = _option("Most num_inference_steps a request may ask for.", 1000, minimum=1)
    max_pixels: int = _option("Most width x height a request may ask for.", 4096 * 4096, minimum=1)
    max_frames: int = _option("Most frames a request may ask for.", 1024, minimum=1)
    max_outputs: int = _option("Most prompts x outputs per prompt of a request.", 64, minimum=1)
    max_prompt_chars: int = _option("Longest text of a request, in characters.", 20_000, minimum=1)
    max_input_pixels: int = _option("Most pixels of one input image.", 8192 * 8192, minimum=1)
    max_input_pixels_in_all: int = _option(
        "Most pixels of all images or frames of one input.", 2**29, minimum=1
    )
    max_audio_s: float = _option(
        "Longest sound a request may send or ask for, in seconds.", 600.0, minimum=0
    )
    max_input_bytes: int = _option("Largest input file, in bytes.", 256 * 2**20, minimum=1)

    def to_parameters(self) -> dict[str, str]:
        """Return the options that differ from their default as config.pbtxt text."""
        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: _write(value) for f, value in values if value != f.default}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "ServeConfig":
        """Read config.pbtxt text. Raises ConfigError for an unknown key or a wrong value."""
        options = {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, text in parameters.items():
            if key not in options:
                raise ConfigError(unknown("parameter", key, "triton-diffusers", options))
            values[key] = read_option(options[key], text)
        config = cls(**values)
        if not config.model:
            raise ConfigError("parameter 'model' is missing: name a hub id or a folder")
        return config


def options() -> tuple[dataclasses.Field[Any], ...]:
    """Return every load-time option; `metadata` is what `_option` took."""
    return dataclasses.fields(ServeConfig)


def option_type(option: dataclasses.Field[Any]) -> type:
    """Return the plain type of an option: str, int, float, bool or dict."""
    hint = typing.get_type_hints(ServeConfig)[option.name]
    if isinstance(hint, types.UnionType):
        hint = next(t for t in typing.get_args(hint) if t is not types.NoneType)
    plain: type = typing.get_origin(hint) or hint
    return plain


def read_option(option: dataclasses.Field[Any], text: str) -> Any:
    """Read one option's text by its declared type. Raises ConfigError naming the option."""
    try:
        value = _READ[option_type(option)](text)
    except ValueError as error:
        raise ConfigError(f"parameter '{option.name}': {error}") from None
    choices, form = option.metadata["choices"], option.metadata["form"]
    minimum, maximum = option.metadata["minimum"], option.metadata["maximum"]
    if choices and value not in choices:
        raise ConfigError(f"parameter '{option.name}': {text!r} is not one of {', '.join(choices)}")
    if minimum is not None and value < minimum:
        raise ConfigError(f"parameter '{option.name}': {text!r} is below {minimum}")
    if maximum is not None and value > maximum:
        raise ConfigError(f"parameter '{option.name}': {text!r} is above {maximum}")
    if form and not re.fullmatch(form[0], value):
        raise ConfigError(f"parameter '{option.name}': {text!r} is not {form[1]}")
    return value


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not 'true' or 'false'")
    return text.lower() == "true"


def _read_number(kind: type, name: str) -> Any:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {name}") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{text!r} is not a finite number")
        return value

    return read


_READ: dict[type, Any] = {
    str: str,
    bool: _read_bool,
    int: _read_number(int, "an integer"),
    float: _read_number(float, "a number"),
    dict: read_json_object,
}


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
