# SPDX-License-Identifier: Apache-2.0
"""`builder add-model`: write an entry from model_index.json and the pipeline's signature."""

import argparse
import shlex
from pathlib import Path

from builder.arguments import Parser, add_repository, count, gpus
from builder.commands import load_options
from builder.console import busy, say, warn
from builder.entries import models, repository
from builder.entries.config_pbtxt import (
    MODEL_PY,
    Entry,
    parse_config,
    read_parameters,
    render_config,
)
from triton_diffusers.config.options import ServeConfig, options, traits
from triton_diffusers.contract import MEDIA
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.signature import Signature, entry_inputs, entry_outputs

EPILOG = "\n\nWhat each load-time option does, needs and how it fails: docs/load-options.md"
SUFFIXES = {"video": "mp4", "audio": "wav"}
STARTS_FROM = ("image", "mask_image", "video")
"""Inputs without which a pipeline that has them rarely works, though it has a default for them."""


def add_to(parser: Parser) -> None:
    """Write an entry of the model repository; reads no weights.

    builder add-model Qwen/Qwen-Image --dtype bfloat16 --vae-use-tiling
    """
    add_repository(parser)
    parser.usage = "builder add-model MODEL [options]"
    about = "hub id, folder with model_index.json, or checkpoint file"
    parser.add_argument("model", metavar="MODEL", help=about)
    parser.add_argument("--name", help="default: the last part of MODEL in lower case")
    parser.add_argument("--instances", type=count, default=1, metavar="N", help="copies per device")
    parser.add_argument(
        "--gpus", type=gpus, default=(), metavar="0,1", help="only on these; default: every GPU"
    )
    parser.add_argument("--decoupled", action="store_true", help="stream progress and previews")
    parser.add_argument("--force", action="store_true", help="replace an entry; keeps other files")
    parser.add_argument("--dry-run", action="store_true", help="print the files, write nothing")
    load_options.add_to(parser)


def run(args: argparse.Namespace) -> int:
    """Write one entry, or print it with --dry-run."""
    folder = Path(args.repository)
    name = repository.check_name(
        models.default_name(args.model) if args.name is None else args.name
    )
    if not args.dry_run:
        repository.check_free(folder, name, args.force)
    entry, signature = build_entry(args, name, folder / name)
    text = render_config(entry)
    parse_config(text)  # Triton's own schema has the last word
    if args.force:
        _warn_of_dropped(folder / name, entry, args)
    if args.dry_run:
        say(f"--- {folder / name / repository.CONFIG}\n{text}")
        say(f"--- {folder / name / repository.MODEL}\n{MODEL_PY}")
        return 0
    repository.write_entry(folder, name, text)
    _say_next(args, entry, signature)
    return 0


def build_entry(args: argparse.Namespace, name: str, folder: Path) -> tuple[Entry, Signature]:
    """Return the entry that the arguments describe; warn of what the pipeline does not take."""
    from triton_diffusers.loading.features import check, check_alone

    config = _read_options(args, folder)
    if args.gpus and config.device is not None:
        raise ConfigError("--gpus and --device both place the pipeline: give one of them")
    lifted = config.lifted()
    if lifted.device_map is not None and (args.gpus or args.instances > 1):
        raise ConfigError(
            "--device-map places one copy itself: leave out --gpus and --instances (to choose its "
            "GPUs start the server with CUDA_VISIBLE_DEVICES)"
        )
    check_alone(lifted)
    plan = models.plan_entry(config, folder)
    with busy("checking the options"):
        notes = check(plan)
    for note in notes:
        warn(note)
    entry = Entry(
        name=name,
        pipeline_class=plan.cls.__name__,
        config=config,
        inputs=entry_inputs(plan.signature, args.decoupled),
        outputs=entry_outputs(plan.signature, args.decoupled),
        instances=args.instances,
        gpus=args.gpus,
        decoupled=args.decoupled,
    )
    return entry, plan.signature


def _read_options(args: argparse.Namespace, folder: Path) -> ServeConfig:
    """Build the config from the options that were given; the rest keep their defaults."""
    given = {o.name: getattr(args, o.name) for o in options() if hasattr(args, o.name)}
    given["model"] = models.model_parameter(args.model, folder)
    for option in options():
        keys = traits(option).paths
        if keys is not None and option.name in given:
            given[option.name] = models.with_paths(given[option.name], folder, keys)
    given["diffusers_version"] = models.diffusers_version()
    return ServeConfig(**given)


def _warn_of_dropped(folder: Path, entry: Entry, args: argparse.Namespace) -> None:
    """Name what the entry that is replaced sets and the new one leaves at its default."""
    try:
        old = parse_config(repository.read_config_text(folder))
    except ConfigError:
        return  # none is there, or what it said cannot be told
    kept = entry.config.to_parameters()
    dropped = [k for k in read_parameters(old) if k not in kept and not hasattr(args, k)]
    if old.model_transaction_policy.decoupled and not entry.decoupled:
        dropped.append("decoupled")
    if dropped:
        them = "it" if len(dropped) == 1 else "them"
        warn(
            f"the entry that is replaced also set {', '.join(dropped)}: give {them} again to keep "
            f"{them}"
        )


def _say_next(args: argparse.Namespace, entry: Entry, signature: Signature) -> None:
    where = "" if args.repository == repository.DEFAULT else f" --repository {args.repository}"
    say(
        f"wrote {Path(args.repository) / entry.name} ({entry.pipeline_class}, {signature.modality})"
    )
    say(f"serve it:  builder serve {entry.name}{where}")
    say(f"call it:   {_example_call(entry.name, signature)}")


def _example_call(name: str, signature: Signature) -> str:
    words = ["builder", "generate", name]
    if "prompt" in signature.parameters:
        words += ["--prompt", "a lighthouse at dusk"]
    for parameter in signature.parameters.values():
        if parameter.kind in MEDIA and (parameter.required or parameter.name in STARTS_FROM):
            words += [f"--{parameter.name}", "FILE"]
    target = signature.modality.rpartition("-to-")[2]
    return shlex.join([*words, "--output", f"{name}.{SUFFIXES.get(target, 'png')}"])
