# SPDX-License-Identifier: Apache-2.0
"""`builder check`: would these entries load here? Reads no weights."""

import argparse
from pathlib import Path
from typing import Any

from builder import models, repository
from builder.console import say, warn
from builder.entry import parse_config, read_parameters
from triton_diffusers.config import ServeConfig
from triton_diffusers.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    """Print one line for each entry; return 1 if any would not load."""
    folder = Path(args.repository)
    names = args.names or repository.entry_names(folder)
    if not names:
        say(f"no entries in '{folder}'")
    return max([_check_named(folder, name) for name in names], default=0)


def _check_named(folder: Path, name: str) -> int:
    try:
        summary, notes = check_entry_folder(repository.find_entry(folder, name))
    except ConfigError as error:
        say(f"FAIL  {name}: {' '.join(str(error).split())}")
        return 1
    for note in notes:
        warn(f"{name}: {note}")
    say(f"ok    {name}: {summary}")
    return 0


def check_entry_folder(folder: Path) -> tuple[str, list[str]]:
    """Return what an entry serves, and warnings. Raises ConfigError for what stops it loading."""
    from triton_diffusers import entry_check

    where = str(folder / repository.CONFIG)
    message = parse_config(repository.read_config_text(folder), where)
    _check_triton_part(message, folder)
    config = ServeConfig.from_parameters(read_parameters(message)).lifted()
    cls = models.find_class(config, folder)
    problems = entry_check.check_entry(_as_dict(message), config, cls)
    if problems:
        raise ConfigError(" ".join(problems))
    notes = check_config(config, cls, folder)
    installed = models.diffusers_version()
    if config.diffusers_version not in (None, installed):
        notes.append(f"written for diffusers {config.diffusers_version}; {installed} fits too")
    return f"{cls.__name__}, {config.model}", notes


def check_config(config: ServeConfig, cls: type, folder: Path) -> list[str]:
    """Return warnings. Raises ConfigError for an option that the pipeline would refuse to load."""
    from triton_diffusers.option_checks import check_options
    from triton_diffusers.signature import read_signature

    _, notes = check_options(config, cls, read_signature(cls), folder)
    return notes


def _check_triton_part(message: Any, folder: Path) -> None:
    """Check what Triton would refuse, or would run without the runtime."""
    if message.name not in ("", folder.name):
        raise ConfigError(f"name is '{message.name}', but the folder is '{folder.name}'")
    if message.backend != "python":
        raise ConfigError(f"backend is '{message.backend}', not 'python': it is not our entry")
    model = folder / repository.MODEL
    if not model.is_file():
        raise ConfigError(f"{model} is missing: write it again with builder add-model --force")
    if "triton_diffusers" not in model.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{model} does not use triton_diffusers: it is not our entry")


def _as_dict(message: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(message, preserving_proto_field_name=True))
