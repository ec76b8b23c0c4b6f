# SPDX-License-Identifier: Apache-2.0
"""`builder serve`: run tritonserver with entries loaded, and keep them alive until told to stop."""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from builder.arguments import Parser, add_repository, port, seconds
from builder.console import busy, fail, say, warn
from builder.entries import repository
from builder.tritonserver import installation
from builder.tritonserver.bare import bare_command, free_ports
from builder.tritonserver.installation import ServerError
from builder.tritonserver.keep import Keeper
from builder.tritonserver.options import read_or_write_key, refuse_owned
from builder.tritonserver.ports import Ports, choose_ports, is_loopback
from builder.tritonserver.server import Server, start_server
from triton_diffusers.config import admin_key
from triton_diffusers.errors import ConfigError

POLL_S = 0.5
LOG_LINES = 15


class StopSignals:
    """Ctrl-C and SIGTERM stop the server; one more, a second later, ends it at once.

    Only the first raises KeyboardInterrupt: another one that raised while the server is being
    stopped would leave it behind. (`timeout` and some shells send every signal twice.)
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.server: Server | None = None
        self._first: float | None = None
        self._before: list[Any] = []

    def __enter__(self) -> "StopSignals":
        self._before = [signal.signal(number, self._stop) for number in self.NUMBERS]
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in zip(self.NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            raise KeyboardInterrupt
        if now - self._first > 1 and self.server is not None:
            self.server.kill()


def add_to(parser: Parser) -> None:
    """Start tritonserver with the named entries and keep them alive.

    builder serve demo --http-port 9000 -- --log-verbose=1
    """
    add_repository(parser)
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
    parser.add_argument(
        "--print-command",
        action="store_true",
        help="print the line that starts tritonserver without builder serve, and start nothing",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show the server's own log")
    parser.usage = "builder serve [NAME ...] [options] [-- TRITON OPTIONS]"


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 1 when nothing could be served."""
    names = _choose_entries(Path(args.repository), args.names)
    refuse_owned(args.triton_options)
    if args.print_command:
        return _print_command(args, names)
    warning = installation.shared_memory_warning()
    if warning:
        warn(warning)
    installation.find()
    # before the log: a refused start leaves none behind
    ports = choose_ports(args.host, Ports(args.http_port, args.grpc_port, args.metrics_port))
    key = None if args.admin_key_file is None else read_or_write_key(args.admin_key_file)
    if not is_loopback(args.host):
        warn(
            f"everybody who reaches {args.host} may call the models; a gateway with keys in front "
            "decides who may (docs/operations.md)"
        )
    log = None if args.verbose else _new_log()
    if log:
        say(f"server log: {log}")
    with StopSignals() as signals:
        try:
            with _start(args, ports, log, key) as server:
                signals.server = server
                return _serve_until_told(server, Path(args.repository), names)
        except KeyboardInterrupt:
            if signals.server and signals.server.unfinished:
                warn(f"requests of {', '.join(signals.server.unfinished)} were not finished")
            say("stopped")
            return 0
        except ServerError:
            _show_tail(log)
            raise


def _print_command(args: argparse.Namespace, names: list[str]) -> int:
    file = args.admin_key_file
    key = admin_key.new_key() if file is None else read_or_write_key(file)
    line = bare_command(
        Path(args.repository),
        names,
        host=args.host,
        ports=free_ports(args.host, Ports(args.http_port, args.grpc_port, args.metrics_port)),
        exit_timeout_s=args.exit_timeout,
        extra=args.triton_options,
        key=key,
    )
    warn(
        "the line holds the key of administrative calls, which others on this machine can read "
        "while it runs; it watches no models (docs/operations.md)"
    )
    say(line)
    return 0


def _serve_until_told(server: Server, repository: Path, names: list[str]) -> int:
    try:
        return _serve(server, repository, names)
    except KeyboardInterrupt:
        limit = f"{server.exit_timeout_s:.0f} s"
        say(f"stopping: running requests have {limit} to finish  (Ctrl-C again ends it at once)")
        raise


def _serve(server: Server, repository: Path, names: list[str]) -> int:
    """Load the entries, then keep them served. Returns only when none could be loaded."""
    keeper = Keeper(server, repository)
    try:
        return _keep(keeper, server, names)
    finally:
        keeper.close()


def _keep(keeper: Keeper, server: Server, names: list[str]) -> int:
    with busy(f"loading {', '.join(names)}"):
        loaded = keeper.load_first(names)
    if not loaded:
        fail("no model could be loaded: see the lines above and the server's log")
        return 1
    say(f"ready: {', '.join(loaded)}  (Ctrl-C stops)")
    say(f"  HTTP    http://{server.http_url}")
    say(f"  gRPC    {server.grpc_url}")
    say(f"  metrics http://{server.metrics_url}/metrics")
    while True:
        time.sleep(POLL_S)
        keeper.look()


def _start(args: argparse.Namespace, ports: Ports, log: Path | None, key: str | None) -> Server:
    with busy("starting tritonserver"):
        return start_server(
            Path(args.repository),
            log=log,
            http_port=ports.http,
            grpc_port=ports.grpc,
            metrics_port=ports.metrics,
            host=args.host,
            exit_timeout_s=args.exit_timeout,
            extra=args.triton_options,
            key=key,
        )


def _choose_entries(folder: Path, names: list[str]) -> list[str]:
    """Return the named entries, or all. Raises ConfigError for one that is not there."""
    for name in names:
        repository.find_entry(folder, name)
    chosen = list(dict.fromkeys(names)) or repository.entry_names(folder)
    if not chosen:
        raise ConfigError(f"'{folder}' holds no entries: write one with builder add-model")
    return chosen


def _new_log() -> Path:
    handle, path = tempfile.mkstemp(prefix="tritonserver-", suffix=".log")
    os.close(handle)
    return Path(path)


def _show_tail(log: Path | None) -> None:
    """Show the end of the server's log when it failed, since nobody saw it."""
    if log is None or not log.stat().st_size:
        return
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)
