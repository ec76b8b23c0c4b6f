# SPDX-License-Identifier: Apache-2.0
"""The load-time options as flags of add-model, in groups, as their dataclass describes them."""

import argparse
from collections.abc import Callable
from typing import Any

from triton_diffusers.config.options import options, traits
from triton_diffusers.config.text import option_type, option_types, read_option
from triton_diffusers.errors import ConfigError, near_miss
from triton_diffusers.families.option import GROUPS


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option that an operator may give."""
    for heading in GROUPS:
        group = parser.add_argument_group(f"load-time options: {heading}")
        for option in options():
            if traits(option).group == heading:
                _add_option(group, option)


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
    other = traits(option).other_names.get(text.lower())
    if not choices or text.lstrip().startswith("{"):
        return ""
    close = f" Did you mean '{other}'?" if other else near_miss(text, choices)
    return f".{close}" if close else ""
