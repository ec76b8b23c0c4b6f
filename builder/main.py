# SPDX-License-Identifier: Apache-2.0
"""`builder`: the command line. Subcommands are imported when they run, so that help is quick."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from builder import console
from builder.arguments import (
    Parser,
    count,
    dashed,
    gpus,
    port,
    refuse_values_of_flags,
    seconds,
    split_at_dashes,
    split_inputs,
)
from builder.commands import load_options
from builder.entries import repository
from builder.tritonserver.installation import ServerError, how_to_install
from triton_diffusers import __version__
from triton_diffusers.config.unsupported import refusal
from triton_diffusers.errors import ConfigError, near_miss, one_line

ABOUT = """\
Serve any Hugging Face diffusers pipeline on NVIDIA Triton.

  builder add-model Qwen/Qwen-Image        write an entry into ./model_repository
  builder serve qwen-image                 start tritonserver with it
  builder generate qwen-image --prompt "a lighthouse at dusk" --output lighthouse.png
"""
EPILOGS = {
    "add-model": "\n\nWhat each load-time option does, needs and how it fails: docs/load-options.md"
}
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
        importlib.import_module("builder.commands.gateway").add_to(commands[command])
    if command == "generate":
        argv, inputs = split_inputs(argv, commands[command])
    elif command is not None:
        refuse_values_of_flags(argv, commands[command])
    args, rest = parser.parse_known_args([dashed(word) for word in argv])
    if command is None:
        parser.print_help()
        parser.exit(2)
    typed = {dashed(word): word for word in argv}
    _place_rest(args, [typed.get(word, word) for word in rest], commands[command])
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
    for add in (_add_model, _inspect, _check, _list, _remove, _serve, _gateway, _probe, _generate):
        name = add.__name__.lstrip("_").replace("_", "-")
        about, _, example = (add.__doc__ or "").partition("\n\n")
        example = "\n".join(line.strip() for line in example.splitlines()).strip()
        commands[name] = group.add_parser(
            name,
            help=about,
            description=about,
            epilog=f"example:\n  {example}" + EPILOGS.get(name, ""),
        )
        add(commands[name])
    return parser, commands


def _add_model(parser: Parser) -> None:
    """Write an entry of the model repository; reads no weights.

    builder add-model Qwen/Qwen-Image --dtype bfloat16 --vae-use-tiling
    """
    _common(parser, "add_model")
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


def _inspect(parser: Parser) -> None:
    """Show a model's components, sizes, inputs, outputs and memory estimate.

    builder inspect Qwen/Qwen-Image
    """
    _common(parser, "inspect_model")
    parser.add_argument(
        "model", metavar="MODEL|NAME", help="hub id, folder, file or name of an entry"
    )
    parser.add_argument("--pipeline-class", default=None, help="instead of model_index.json's")
    parser.add_argument("--revision", default=None, help="branch, tag or commit of a hub model")
    parser.add_argument("--subfolder", default=None, help="folder inside that holds the pipeline")


def _check(parser: Parser) -> None:
    """Check entries against the installed diffusers and Triton's own parser.

    builder check demo
    """
    _common(parser, "check")
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; default: all")


def _list(parser: Parser) -> None:
    """List the entries of the model repository.

    builder list --repository /models
    """
    _common(parser, "list_models")


def _remove(parser: Parser) -> None:
    """Remove an entry.

    builder remove qwen-image
    """
    _common(parser, "remove")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--force", action="store_true", help="delete weights inside the entry too")


def _serve(parser: Parser) -> None:
    """Start tritonserver with the named entries and keep them alive.

    builder serve demo --http-port 9000 -- --log-verbose=1
    """
    _common(parser, "serve")
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; default: all")
    for kind, number in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        text = f"default: {number}; 0: a free one"
        parser.add_argument(f"--{kind}-port", type=port, default=number, metavar="P", help=text)
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s; 0.0.0.0: all")
    parser.add_argument(
        "--exit-timeout",
        type=seconds,
        default=300,
        metavar="S",
        help="what running requests have to finish at the end; default: %(default)s",
    )
    parser.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="key of administrative calls (load, unload): read, or written where it is missing",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show the server's own log")
    parser.usage = "builder serve [NAME ...] [options] [-- TRITON OPTIONS]"


def _gateway(parser: Parser) -> None:
    """Serve an OpenAI-style API and a page in front of tritonservers.

    builder gateway --triton localhost:8001 --port 8080
    """
    parser.set_defaults(module="builder.commands.gateway")
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s; 0.0.0.0: all")
    parser.add_argument(
        "--port", type=port, default=8080, metavar="P", help="default: %(default)s; 0: a free one"
    )
    parser.add_argument(
        "--exit-timeout",
        type=seconds,
        default=30,
        metavar="S",
        help="what running requests have to finish at the end; default: %(default)s",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show a line for each request")


def _probe(parser: Parser) -> None:
    """Tell by the exit code whether a served model is ready and its process lives.

    builder probe demo --protocol http --timeout 5
    """
    parser.set_defaults(module="builder.commands.probe")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a served model; default: every loaded one"
    )
    _server(parser)
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="for all; default: %(default)s"
    )


def _generate(parser: Parser) -> None:
    """Ask a served model for an image, video or sound and save it.

    builder generate demo --prompt "a handwritten seven" --seed 7 --output seven.png
    """
    parser.set_defaults(module="builder.commands.generate")
    parser.add_argument("name", metavar="NAME", help="a served model")
    parser.add_argument("--output", required=True, metavar="FILE", help="its suffix is the format")
    _server(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=None, metavar="S", help="give up after S"
    )
    parser.usage = (
        "builder generate NAME --prompt TEXT [--INPUT VALUE ...] --output FILE [options]\n\n"
        "Any other --INPUT VALUE is an input of the model: --num-inference-steps 20\n"
        "--image cat.png (a file). An option given several times sends several values.\n"
        "--preview-every 5 keeps a preview in FILE's name with -preview.jpg, where the entry was\n"
        "written with --decoupled."
    )


def _server(parser: Parser) -> None:
    parser.add_argument("--url", default=None, help="default: localhost:8001, over http :8000")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")


def _common(parser: Parser, module: str) -> None:
    parser.set_defaults(module=f"builder.commands.{module}")
    parser.add_argument(
        "--repository", default=repository.DEFAULT, metavar="DIR", help="default: %(default)s"
    )


def _place_rest(args: argparse.Namespace, rest: list[str], parser: Parser) -> None:
    """Put names that stand behind options where they belong; refuse what is unknown."""
    for word in rest:
        if word.startswith("-") or not hasattr(args, "names"):
            name = word.partition("=")[0]
            if reason := refusal(name.lstrip("-")):
                parser.error(f"option {reason}")
            known = [*parser._option_string_actions]
            serves = args.module == "builder.commands.serve"
            hint = f" Triton's own go last: -- {word}" if serves else ""
            parser.error(f"unknown option '{name}'.{near_miss(name, known)}{hint}")
        args.names.append(word)


if __name__ == "__main__":
    sys.exit(main())
