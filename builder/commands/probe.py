# SPDX-License-Identifier: Apache-2.0
"""`builder probe`: ask a model whether its process lives, which Triton's readiness does not tell.

A request with the parameter `probe` is answered by the entry's process at once, without a place in
the queue, with `info` alone. A container platform runs this command every few seconds: it imports
no torch, over HTTP the standard library only.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from builder.arguments import Parser, add_server
from builder.console import fail, say
from builder.probes.transport import NoAnswerError, Transport, read_answer
from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import answers_probes, instances
from triton_diffusers.errors import unknown

PORTS = {"grpc": 8001, "http": 8000}

FIXED = ("pipeline_class", "fps", "extra")
"""What an answer tells that does not change: for clients, not for a line about health."""


def add_to(parser: Parser) -> None:
    """Tell by the exit code whether a served model is ready and its process lives.

    builder probe demo --protocol http --timeout 5
    """
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a served model; default: every loaded one"
    )
    add_server(parser)
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="for all; default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Return 0 when the model, or every loaded one, is ready and its process lives."""
    server = _connect(args.protocol, args.url, args.timeout)
    try:
        server.live()
        states = server.states()
        names = [args.name] if args.name else _loaded(states)
        if not names:
            raise ServerError("the server is live, but no model is loaded")
        failures = [reason for name in names if (reason := _probe(server, name, states))]
    except NoAnswerError as error:
        failures = [str(error)]
    if failures:
        fail("; ".join(failures))
    return 1 if failures else 0


def _loaded(states: Mapping[str, str]) -> list[str]:
    """Return the models that are ready or about to be; not those that were unloaded."""
    return [name for name, state in states.items() if state not in ("", "UNAVAILABLE")]


def _probe(server: Transport, name: str, states: Mapping[str, str]) -> str | None:
    """Probe one model, print its line; return why it is not well."""
    if not states.get(name):
        told = unknown("model", name, "the server", [n for n, state in states.items() if state])
        return told if server.lists_all else f"{told} A model that is loading is not listed here."
    if states[name] != "READY":
        return f"model '{name}' is not ready: {states[name]}"
    try:
        config = server.config(name)
        if not answers_probes(config):
            say(f"{name}: ready, says Triton; no entry of builder add-model, so it was not asked")
            return None
        # Triton hands requests to the instances of a model in turn
        answers = [read_answer(server.ask(name, config)) for _ in range(max(1, instances(config)))]
    except NoAnswerError as error:
        raise NoAnswerError(f"model '{name}' is ready, says Triton, but: {error}") from None
    except ServerError as error:
        return f"model '{name}' is ready, says Triton, but not well: {error}"
    ill = [answer for answer in answers if answer["status"] != "ready"]
    if ill:
        return f"model '{name}' is not well: {_tell(ill[0])}"
    say(f"{name}: " + " | ".join(map(_tell, answers)))
    return None


def _tell(answer: Mapping[str, Any]) -> str:
    """Say it on one line: ready, waiting 0, running 1, seconds since last step 0.2."""
    facts = (
        f"{key.replace('_', ' ')} {value}"
        for key, value in answer.items()
        if value is not None and key not in FIXED
    )
    return ", ".join(facts).removeprefix("status ")


def _connect(protocol: str, url: str | None, timeout_s: float) -> Transport:
    where = _address(url or "localhost", protocol)
    # gRPC takes longer to import than a whole probe over HTTP
    if protocol == "http":
        from builder.probes.http import Http

        return Http(where, timeout_s)
    from builder.probes.grpc import Grpc

    return Grpc(where, timeout_s)


def _address(url: str, protocol: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme != protocol:
        raise ServerError(
            f"--url '{url}' does not fit --protocol {protocol}: write HOST:PORT, without TLS"
        )
    rest = rest.rstrip("/")
    bare = rest.endswith("]") if rest.startswith("[") else ":" not in rest
    return f"{rest}:{PORTS[protocol]}" if bare else rest
