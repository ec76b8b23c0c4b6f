# SPDX-License-Identifier: Apache-2.0
"""`builder list`: the entries of the repository and what each serves. Imports no diffusers."""

import argparse
from pathlib import Path

from builder.arguments import Parser, add_repository
from builder.console import say
from builder.entries import repository
from builder.entries.config_pbtxt import parse_config, read_parameters
from triton_diffusers.errors import ConfigError, one_line


def add_to(parser: Parser) -> None:
    """List the entries of the model repository.

    builder list --repository /models
    """
    add_repository(parser)


def run(args: argparse.Namespace) -> int:
    """Print a line for each entry; an unreadable one is named as such."""
    folder = Path(args.repository)
    names = repository.entry_names(folder)
    if not names:
        say(f"no entries in '{folder}': write one with builder add-model MODEL")
    width = max(map(len, names), default=0)
    for name in names:
        say(f"{name:<{width}}  {_describe(folder / name)}")
    return 0


def _describe(folder: Path) -> str:
    try:
        parameters = read_parameters(parse_config(repository.read_config_text(folder)))
    except ConfigError as error:
        return f"unreadable: {one_line(error)}"
    options = [f"{k}={v}" for k, v in parameters.items() if k not in ("model", "diffusers_version")]
    return "  ".join([parameters.get("model", "(no model parameter)"), *options])
