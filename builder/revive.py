# SPDX-License-Identifier: Apache-2.0
"""Load models, and load them again when their process died, with a line for each."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from builder.console import busy, fail, say, warn
from builder.installation import ServerError
from builder.model_config import answers_probes, instances
from builder.probe import read_answer
from builder.probe_http import Http
from builder.tritonserver import Server

UNLOAD_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 10.0


def load(server: Server, name: str) -> bool:
    """Load a model; tell how long it took, or why it did not load."""
    started = time.monotonic()
    try:
        with busy(f"loading {name}"):
            server.load(name)
    except ServerError as error:
        if not server.is_running():
            raise
        # Triton keeps the reason for a wrong config.pbtxt to its log
        hint = f"; builder check {name} says why" if "failed to poll" in str(error) else ""
        fail(f"model '{name}' did not load: {error}{hint}")
        return False
    say(f"loaded {name} in {time.monotonic() - started:.1f} s")
    return True


def revive(server: Server, dead: Sequence[str]) -> None:
    """Load models again whose process died: Triton itself keeps answering that they are ready.

    Triton never answers the requests that such a process was running, and cannot be told to: it
    waits for them, and so do their clients. Only the end of their connections reaches those, so
    the whole server is started again then. An unload that does not end is the sign of it.
    """
    serving = [name for name, state in server.states().items() if state == "READY"]
    for name in dead:
        warn(f"the Python process of model '{name}' died (out of memory?); loading it again")
    held = [name for name in dead if not _unload(server, name)]
    if not held:
        for name in dead:
            load(server, name)
        return
    warn(
        f"requests that {_models(held)} was running are lost; starting tritonserver again, so "
        "that their clients get an error (requests to other models are finished first)"
    )
    unfinished = server.restart(lost=held)
    if unfinished:
        warn(f"{_models(unfinished)} did not finish in {server.exit_timeout_s:.0f} s")
    loaded = [name for name in dict.fromkeys([*serving, *dead]) if load(server, name)]
    say(f"ready again: {', '.join(loaded) or 'none'}")


def _unload(server: Server, name: str) -> bool:
    """Unload a dead model; tell whether Triton let it go.

    Other instances of it that live get the time to finish what they run.
    """
    timeout_s = server.exit_timeout_s if _runs(server, name) else UNLOAD_TIMEOUT_S
    try:
        server.unload(name, timeout_s)
    except ServerError:
        if not server.is_running():
            raise
        return False
    return True


def _runs(server: Server, name: str) -> bool:
    """Tell whether living instances of a model have work: they say so, or do not answer."""
    if not any(stub.model == name for stub in server.stubs()):
        return False
    answers: list[dict[str, Any]] = []
    asker = Http(server.http_url, PROBE_TIMEOUT_S)
    with suppress(ServerError):
        config = asker.config(name)
        if answers_probes(config):
            # requests go to the instances in turn; a dead one refuses
            for _ in range(2 * instances(config)):
                with suppress(ServerError):
                    answers.append(read_answer(asker.ask(name, config)))
    return not answers or any(answer["waiting"] or answer["running"] for answer in answers)


def _models(names: Sequence[str]) -> str:
    return ", ".join(f"model '{name}'" for name in names)
