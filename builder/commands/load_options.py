# SPDX-License-Identifier: Apache-2.0
"""The load-time options as flags of add-model, in groups, as their dataclass describes them."""

import argparse
from collections.abc import Callable
from typing import Any

from triton_diffusers.config.options import options
from triton_diffusers.config.text import option_type, option_types, read_option
from triton_diffusers.errors import ConfigError, near_miss

GROUPS: dict[str, tuple[str, ...]] = {
    "weights": (
        *("pipeline_class", "revision", "subfolder", "variant", "use_safetensors"),
        *("custom_pipeline", "trust_remote_code", "dtype", "quantization_config", "lora"),
        "diffusers_load_kwargs",
    ),
    "memory": (
        *("device", "device_map", "enable_cpu_offload", "enable_group_offload"),
        *("enable_layerwise_offload", "layerwise_casting", "vae_use_slicing", "vae_use_tiling"),
    ),
    "speed": (
        *("attention_backend", "attention_fallback", "torch_compile", "channels_last"),
        *("warmup", "cpu_threads", "request_batching", "step_batching"),
        *("max_in_flight", "max_batch", "stuck_after_s"),
    ),
    "defaults of calls": (
        *("diffusers_call_kwargs", "scheduler", "flow_shift", "boundary_ratio"),
        *("generator_device", "log_requests"),
    ),
    "limits": (
        *("max_queue", "max_steps", "max_pixels", "max_frames", "max_outputs", "max_work"),
        *("max_prompt_chars", "max_input_pixels", "max_input_pixels_in_all", "max_input_bytes"),
        "max_audio_s",
    ),
}
"""Heading in the help of add-model -> its load-time options."""
OTHER_NAMES = {
    "dtype": {
        **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
        **{"float": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"},
    }
}
"""Option -> what is typed elsewhere -> the choice that is meant."""
WRITTEN_BY_US = ("model", "diffusers_version")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option that an operator may give."""
    by_name = {option.name: option for option in options()}
    for heading, names in GROUPS.items():
        group = parser.add_argument_group(f"load-time options: {heading}")
        for name in names:
            _add_option(group, by_name[name])


def _add_option(group: Any, option: Any) -> None:
    """Add one load-time option as its dataclass field describes it."""
    flag = "--" + option.name.replace("_", "-")
    # a % in a help text would be a format of argparse
    about = option.metadata["about"].replace("%", "%%")
    # SUPPRESS: an option that was not given is left out of the entry
    if option_type(option) is bool:
        # --no-... only where leaving the option out means something else than false
        on_off = "store_true" if option.default is False else argparse.BooleanOptionalAction
        group.add_argument(flag, action=on_off, default=argparse.SUPPRESS, help=about)
        return
    names = {dict: "JSON", int: "N", float: "X"}
    kinds = option_types(option)
    metavar = "|".join(option.metadata["choices"]) or names.get(kinds[0], "TEXT")
    metavar += "|JSON" if len(kinds) > 1 else ""
    group.add_argument(
        flag, type=_reader(option), default=argparse.SUPPRESS, metavar=metavar, help=about
    )


def _reader(option: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return read_option(option, text)
        except ConfigError as error:
            told = str(error).partition(": ")[2] or str(error)
            raise argparse.ArgumentTypeError(told + _meant(option, text)) from None

    return read


def _meant(option: Any, text: str) -> str:
    """Return " Did you mean 'x'?" for a misspelt choice, or one that has another name elsewhere."""
    choices = option.metadata["choices"]
    other = OTHER_NAMES.get(option.name, {}).get(text.lower())
    if not choices or text.lstrip().startswith("{"):
        return ""
    close = f" Did you mean '{other}'?" if other else near_miss(text, choices)
    return f".{close}" if close else ""
