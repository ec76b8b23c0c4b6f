# SPDX-License-Identifier: Apache-2.0
"""`builder`: the command line. Subcommands are imported when they run, so that help is quick."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from builder import console
from builder.arguments import (
    Parser,
    as_ours,
    dashed,
    place_rest,
    refuse_values_of_flags,
    split_at_dashes,
    split_inputs,
)
from builder.tritonserver.installation import ServerError, how_to_install
from triton_diffusers import __version__
from triton_diffusers.errors import ConfigError, near_miss, one_line

ABOUT = """\
Serve any Hugging Face diffusers pipeline on NVIDIA Triton.

  builder add-model Qwen/Qwen-Image        write an entry into ./model_repository
  builder serve qwen-image                 start tritonserver with it
  builder generate qwen-image --prompt "a lighthouse at dusk" --output lighthouse.png
"""
COMMANDS = {
    **{"add-model": "add_model", "inspect": "inspect_model", "check": "check"},
    **{"list": "list_models", "remove": "remove", "serve": "serve", "gateway": "gateway"},
    **{"probe": "probe", "generate": "generate"},
}
"""Command -> its module in builder/commands, which has `add_to(parser)` and `run(args)`.

The docstring of `add_to` is its help: what it does, and an example.
"""
DEBUG = "BUILDER_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        run: Callable[[argparse.Namespace], int] = importlib.import_module(args.module).run
        return run(args)
    except (ConfigError, ServerError) as error:
        console.fail(str(error))
    except KeyboardInterrupt:
        console.fail("interrupted")
    except BrokenPipeError:
        # the reader of a pipe went away; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if isinstance(error, ModuleNotFoundError) and find_spec("diffusers") is None:
            console.fail(how_to_install(error, "runtime"))
            return 1
        told = one_line(error)
        if isinstance(error, PermissionError) and error.filename:
            told = f"no permission to read or write '{error.filename}'"
        console.fail(f"{told} (set {DEBUG}=1 to see where)")
    return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exits with 2 on wrong usage."""
    parser, commands = make_parser()
    argv, triton_options = split_at_dashes(argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in commands:
        parser.error(f"no command '{command}'.{near_miss(command, commands)}")
    inputs: list[str] = []
    if command == "gateway":
        # its options need packages that nobody else has to have, or to wait for
        importlib.import_module("builder.commands.gateway").add_settings(commands[command])
    if command == "generate":
        argv, inputs = split_inputs(argv, commands[command])
    elif command is not None:
        refuse_values_of_flags(argv, commands[command])
    if command == "add-model":
        argv = as_ours(argv, commands[command])
    args, rest = parser.parse_known_args([dashed(word) for word in argv])
    if command is None:
        parser.print_help()
        parser.exit(2)
    typed = {dashed(word): word for word in argv}
    place_rest(args, [typed.get(word, word) for word in rest], commands[command])
    args.triton_options, args.inputs = triton_options, inputs
    if triton_options and command != "serve":
        parser.error("options after -- are for builder serve")
    return args


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser, and that of each subcommand by name."""
    parser = Parser(prog="builder", description=ABOUT)
    parser.add_argument("--version", action="version", version=__version__)
    group = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    commands: dict[str, Parser] = {}
    for name, module in COMMANDS.items():
        command = importlib.import_module(f"builder.commands.{module}")
        about, _, example = str(command.add_to.__doc__).partition("\n\n")
        example = "\n".join(line.strip() for line in example.splitlines()).strip()
        commands[name] = group.add_parser(
            name,
            help=about,
            description=about,
            epilog=f"example:\n  {example}" + getattr(command, "EPILOG", ""),
        )
        commands[name].set_defaults(module=command.__name__)
        command.add_to(commands[name])
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
