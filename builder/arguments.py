# SPDX-License-Identifier: Apache-2.0
"""The parser of `builder`, and the types of its arguments: counts, seconds, ports, GPUs."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from builder.entries import repository
from triton_diffusers.config.unsupported import (
    LOAD_FORMAT,
    LOAD_FORMATS,
    OF_SERVERS,
    RENAMED,
    refusal,
)
from triton_diffusers.errors import near_miss, unknown


class Parser(argparse.ArgumentParser):
    """argparse with short usage errors, no abbreviations and examples kept as written."""

    def __init__(self, **arguments: Any) -> None:
        arguments.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        lacking = re.fullmatch(r"argument (--\S+): expected one argument", message)
        if lacking and lacking[1] in self._option_string_actions:
            action = self._option_string_actions[lacking[1]]
            wanted = str(action.metavar or "|".join(action.choices or ()) or "TEXT")
            listed = f"one of {wanted.replace('|', ', ')}" if "|" in wanted else wanted
            message = f"{lacking[1]} needs a value: {listed}"
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def count(text: str) -> int:
    """Read a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count of 1 or more")
    return int(text)


def seconds(text: str) -> int:
    """Read a whole number of seconds, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds, 0 or more")
    return int(text)


def port(text: str) -> int:
    """Read the number of a port; 0 is a free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port (0 to 65535)")
    return int(text)


def gpus(text: str) -> tuple[int, ...]:
    """Read a list of GPU numbers, each once: 0,1."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of GPU numbers such as 0,1")
    return tuple(dict.fromkeys(int(part) for part in parts))


def split_at_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what stands before a lone -- and what stands behind it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def dashed(word: str) -> str:
    """Accept the parameters' own spelling: --vae_use_tiling."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def as_ours(argv: Sequence[str], parser: Parser) -> list[str]:
    """Return the flags of add-model with those of vLLM-Omni under the names that they have here."""
    result = []
    words = iter(argv)
    for word in words:
        name, equals, value = dashed(word).partition("=")
        theirs = name.lstrip("-").replace("-", "_") if word.startswith("-") else ""
        if theirs == LOAD_FORMAT:
            given = value if equals else next(words, "")
            told = LOAD_FORMATS.get(given, unknown("load format", given, name, LOAD_FORMATS))
            if told:
                parser.error(f"{name} {given}: {told}")
        elif theirs in RENAMED:
            result.append(f"--{RENAMED[theirs].replace('_', '-')}{equals}{value}")
        else:
            result.append(word)
    return result


def split_inputs(argv: list[str], parser: Parser) -> tuple[list[str], list[str]]:
    """Take the `--INPUT VALUE` pairs of generate out of a command line."""
    own, inputs = [], []
    words = iter(argv)
    for word in words:
        name = dashed(word).partition("=")[0]
        if not word.startswith("--") or name in parser._option_string_actions:
            own.append(word)
            if word.startswith("--") and "=" not in word and name != "--help":
                own += [value for value in [next(words, None)] if value is not None]
        else:
            inputs.append(word if "=" in word else f"{word}={next(words, 'true')}")
    return own, inputs


def refuse_values_of_flags(argv: Sequence[str], parser: Parser) -> None:
    """Refuse `--flag true`: the value would be taken for the model's name, or be unknown."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = dashed(word).partition("=")
        action = parser._option_string_actions.get(name)
        given = value if equals else following
        if action is None or action.nargs != 0 or given.lower() not in ("true", "false"):
            continue
        off = f"--no-{name[2:]}"
        hint = "leave it out" if off not in parser._option_string_actions else f"give {off}"
        parser.error(f"{name} takes no value: give it alone, or for false {hint}")


def add_repository(parser: Parser) -> None:
    """Add the option that names the model repository."""
    parser.add_argument(
        "--repository", default=repository.DEFAULT, metavar="DIR", help="default: %(default)s"
    )


def add_server(parser: Parser) -> None:
    """Add the options that say where a running server is."""
    parser.add_argument("--url", default=None, help="default: localhost:8001, over http :8000")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")


def place_rest(args: argparse.Namespace, rest: list[str], parser: Parser) -> None:
    """Put names that stand behind options where they belong; refuse what is unknown."""
    for word in rest:
        if word.startswith("-") or not hasattr(args, "names"):
            name = word.partition("=")[0]
            theirs = name.lstrip("-").replace("-", "_")
            elsewhere = args.module != "builder.commands.add_model" and (
                theirs in (*OF_SERVERS, *RENAMED, LOAD_FORMAT)
            )
            if not elsewhere and (reason := refusal(theirs)):
                parser.error(f"option {reason}")
            known = [*parser._option_string_actions]
            serves = args.module == "builder.commands.serve"
            hint = f" Triton's own go last: -- {word}" if serves else ""
            parser.error(f"unknown option '{name}'.{near_miss(name, known)}{hint}")
        args.names.append(word)
