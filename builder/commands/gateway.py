# SPDX-License-Identifier: Apache-2.0
"""`builder gateway`: run the OpenAI-style service with uvicorn until told to stop.

Its options are the fields of `triton_diffusers.gateway.Settings`, which needs the extra [gateway].
"""

import argparse
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from builder.arguments import Parser, port, seconds
from builder.console import fail, say, warn
from builder.tritonserver.installation import how_to_install
from builder.tritonserver.ports import bind, is_loopback
from builder.tritonserver.server import LOOPBACK
from triton_diffusers.errors import ConfigError, near_miss

if TYPE_CHECKING:
    from fastapi import FastAPI

    from triton_diffusers.gateway import Settings

SECRETS = ("api_keys",)
"""Settings that are no options: everybody on the machine can read a command line."""
URLS = ("database", "files")
"""Settings that may hold a password, which is refused on a command line."""
KUBERNETES = re.compile(r"(SERVICE|PORT)(_|$)")
"""What it calls variables of a service of the gateway's name."""
KEEP_ALIVE_S = 75
"""Longer than proxies keep an idle connection, so that none is used that is just being closed."""
IDLE_CONNECTIONS = 1024
STOPPING = (signal.SIGINT, signal.SIGTERM)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for every setting. Raises ConfigError where the extra is not installed."""
    fields = _settings_class().model_fields
    group = parser.add_argument_group("settings", "each is also a variable, see the end")
    for name, field in fields.items():
        if name in SECRETS:
            continue
        flag, about = "--" + name.replace("_", "-"), _about(field)
        if field.annotation is bool:
            on_off = argparse.BooleanOptionalAction
            group.add_argument(flag, action=on_off, default=argparse.SUPPRESS, help=about)
        else:
            metavar = _metavar(field.annotation)
            group.add_argument(flag, default=argparse.SUPPRESS, metavar=metavar, help=about)
    prefix = _settings_class().model_config["env_prefix"]
    parser.epilog = (
        f"{parser.epilog}\n\nEach setting may also come from a variable, {prefix}TRITON and so on; "
        f"an\noption wins. Keys come from --api-keys-file or {prefix}API_KEYS,\nand passwords "
        f"inside URLs from variables only: everybody can read a command line."
    )


def add_to(parser: Parser) -> None:
    """Serve an OpenAI-style API and a page in front of tritonservers.

    builder gateway --triton localhost:8001 --port 8080
    """
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


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 1 when the gateway could not start."""
    settings = read_settings(args)
    _log(args.verbose)
    # before the database is opened: a refused start leaves nothing behind
    bound = bind(args.host, args.port, "HTTP", "--port")
    if not settings.api_keys and settings.api_keys_file is None and not is_loopback(args.host):
        warn(f"everybody who reaches {args.host} may call: no keys are set (--api-keys-file)")
    try:
        with bound, _signals_as_interrupt():
            return _serve(_create(settings, is_loopback(args.host)), settings, bound, args)
    except KeyboardInterrupt:
        say("stopped")
        return 0


def read_settings(args: argparse.Namespace) -> "Settings":
    """Read the options and variables. Raises ConfigError that names the one that is wrong."""
    import pydantic

    settings_class = _settings_class()
    given = {n: getattr(args, n) for n in settings_class.model_fields if hasattr(args, n)}
    prefix = str(settings_class.model_config["env_prefix"])
    for name in URLS:
        if urlsplit(str(given.get(name, ""))).password:
            raise ConfigError(
                f"--{name} holds a password, which everybody can read in the list of processes; "
                f"put the URL into the variable {prefix}{name.upper()}"
            )
    _warn_of_unknown_variables(list(settings_class.model_fields), prefix)
    try:
        return settings_class(**given)
    except pydantic.ValidationError as error:
        raise ConfigError(_word(error, given, prefix)) from None


def _warn_of_unknown_variables(names: list[str], prefix: str) -> None:
    known = [prefix + name.upper() for name in names]
    for name in os.environ:
        if not name.startswith(prefix) or name in known:
            continue
        if not KUBERNETES.match(name.removeprefix(prefix)):
            warn(f"the variable {name} is no setting and has no effect.{near_miss(name, known)}")


def _word(error: Any, given: dict[str, Any], prefix: str) -> str:
    """Word the first of pydantic's complaints; a secret's value is not told."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    where = f"--{name.replace('_', '-')}" if name in given else f"{prefix}{name.upper()}"
    value = "" if name in (*SECRETS, *URLS) else f", got {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}{value}" if name else message


def _serve(app: "FastAPI", settings: "Settings", bound: Any, args: argparse.Namespace) -> int:
    import uvicorn

    from triton_diffusers.gateway.connections import Connection

    host = LOOPBACK.get(args.host, args.host).strip("[]")
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _say_where(url, settings)

    config = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        log_level="info" if args.verbose else "warning",
        access_log=args.verbose,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=args.exit_timeout,
        # an idle connection costs little, but not nothing
        limit_concurrency=settings.max_requests + IDLE_CONNECTIONS,
    )
    server = Server(config)
    server.run(sockets=[bound])
    if not server.started:
        fail("the gateway could not start: see the lines above")
        return 1
    return 0


def _say_where(url: str, settings: "Settings") -> None:
    say("gateway ready  (Ctrl-C stops)")
    if settings.page:
        say(f"  page    {url}/")
    say(f"  API     {url}/v1")
    say(f"  Triton  {', '.join(settings.triton)}")


def _create(settings: "Settings", only_local: bool) -> "FastAPI":
    with _told_what_to_install():
        from triton_diffusers.client import DiffusersClientError
        from triton_diffusers.gateway import create_app

        try:
            return create_app(settings, only_local=only_local)
        except DiffusersClientError as error:
            raise ConfigError(f"--triton: {error}") from None


def _settings_class() -> "type[Settings]":
    with _told_what_to_install():
        from triton_diffusers.gateway.settings import Settings

        return Settings


@contextmanager
def _told_what_to_install() -> Iterator[None]:
    try:
        import uvicorn  # noqa: F401 - only whether it is installed

        yield
    except ModuleNotFoundError as error:
        raise ConfigError(how_to_install(error, "gateway")) from None


def _about(field: Any) -> str:
    default = field.default
    if default in (None, (), True):
        return str(field.description)
    text = ",".join(default) if isinstance(default, tuple) else default
    return f"{field.description}; default: {text}"


def _metavar(annotation: Any) -> str:
    texts = [kind for part in get_args(annotation) for kind in (part, *get_args(part))]
    if choices := [text for text in texts if isinstance(text, str)]:
        return "|".join(choices)
    kinds = {int: "N", float: "X", Path: "FILE"}
    for kind in (annotation, *get_args(annotation)):
        if kind in kinds:
            return kinds[kind]
    return "TEXT[,TEXT...]" if "tuple" in str(annotation) else "TEXT"


def _log(verbose: bool) -> None:
    """Show what the gateway logs: servers that come and go, and what fails."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(_without_query)
    logging.getLogger("triton_diffusers").setLevel(logging.DEBUG if verbose else logging.INFO)


def _without_query(record: logging.LogRecord) -> bool:
    """Cut the query off the path of a line: a key may have been put there."""
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, *rest = record.args
        record.args = (client, method, str(path).partition("?")[0], *rest)
    return True


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """uvicorn ends what runs on the first signal, and then hands the signal on to us.

    A shell lets its background jobs ignore SIGINT; whoever sends it means it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
