# SPDX-License-Identifier: Apache-2.0
"""`builder check`: would these entries load here? Reads no weights."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.arguments import Parser, add_repository
from builder.console import busy, say, warn
from builder.entries import models, repository
from builder.entries.config_pbtxt import parse_config, read_parameters
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError

if TYPE_CHECKING:
    from triton_diffusers.loading.plan import LoadPlan


def add_to(parser: Parser) -> None:
    """Check entries against the installed diffusers and Triton's own parser.

    builder check demo
    """
    add_repository(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; default: all")


def run(args: argparse.Namespace) -> int:
    """Print one line for each entry; return 1 if any would not load."""
    folder = Path(args.repository)
    names = args.names or repository.entry_names(folder)
    if not names:
        say(f"no entries in '{folder}'")
    return max([_check_named(folder, name) for name in names], default=0)


def _check_named(folder: Path, name: str) -> int:
    try:
        with busy(f"checking {name}"):
            summary, notes = check_entry_folder(repository.find_entry(folder, name))
    except ConfigError as error:
        for problem in error.args:
            say(f"FAIL  {name}: {' '.join(str(problem).split())}")
        return 1
    for note in notes:
        warn(f"{name}: {note}")
    say(f"ok    {name}: {summary}")
    return 0


def check_entry_folder(folder: Path) -> tuple[str, list[str]]:
    """Return what an entry serves, and warnings.

    Raises ConfigError for what stops it loading, with one argument for each wrong parameter.
    """
    from triton_diffusers.loading.entry import check_entry
    from triton_diffusers.loading.features import check, check_alone
    from triton_diffusers.loading.warmup import tried_options

    where = str(folder / repository.CONFIG)
    message = parse_config(repository.read_config_text(folder), where)
    _check_triton_part(message, folder)
    written = _read_config(read_parameters(message))
    config = written.lifted()
    check_alone(config)
    plan = models.plan_entry(written, folder)
    if problems := check_entry(_as_dict(message), plan):
        raise ConfigError(" ".join(problems))
    notes = check(plan) + _lacks_gpu(plan)
    installed = models.diffusers_version()
    if config.diffusers_version not in (None, installed):
        notes.append(f"written for diffusers {config.diffusers_version}; {installed} fits too")
    tried = tried_options(config)
    told = f" (tried at load: {', '.join(tried)})" if tried else ""
    return f"{plan.cls.__name__}, {config.model}{told}", notes


def _read_config(parameters: dict[str, str]) -> ServeConfig:
    """Read an entry's parameters. Raises ConfigError with one argument for each wrong one."""
    problems = []
    for name, text in parameters.items():
        try:
            ServeConfig.from_parameters({"model": "any", name: text})
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(*problems)
    return ServeConfig.from_parameters(parameters)


def _lacks_gpu(plan: "LoadPlan") -> list[str]:
    """Return a warning for each option that needs a GPU where none is: the server may have one."""
    needing = [plan.placement.option] if plan.placement else []
    needing += [option for option, name in plan.devices.items() if name not in ("", "cpu")]
    if not needing or _has_gpu():
        return []
    return [f"parameter '{name}' needs a GPU; this machine has none" for name in needing]


def _has_gpu() -> bool:
    import torch

    return bool(torch.accelerator.is_available())


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
