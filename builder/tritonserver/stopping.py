# SPDX-License-Identifier: Apache-2.0
"""End a tritonserver: requests that run are answered first, idle connections do not hold it.

Triton's own end waits for every open HTTP connection until its exit timeout, then may crash. So
the models are unloaded first, which waits for their requests, and their stubs tell when they are
done: from then on nothing but idle connections is left.
"""

import time
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from typing import Protocol

from builder.tritonserver import stubs
from builder.tritonserver.installation import ServerError

GRACE_S = 5.0
"""For answers that are on their way when the last model is done, and for Triton's own end."""
ASK_S = 2.0
POLL_S = 0.1


class Stoppable(Protocol):
    """What of a server its end needs."""

    process: Popen[bytes]
    exit_timeout_s: float

    @property
    def pid(self) -> int:
        """The process id of tritonserver."""

    def is_running(self) -> bool:
        """Tell whether the process lives."""

    def states(self, timeout_s: float) -> dict[str, str]:
        """Return the state of every model, such as READY."""

    def start_unload(self, name: str, timeout_s: float) -> None:
        """Tell a model to finish its requests and end."""

    def stubs(self) -> list[stubs.Stub]:
        """Return the Python processes of its models."""

    def kill(self) -> None:
        """End it and all that it started at once."""


def end(server: Stoppable) -> list[str]:
    """End the server and everything that it started; return the models that were not done."""
    unfinished: list[str] = []
    try:
        if server.is_running():
            awaited = _unload_all(server)
            server.process.terminate()
            unfinished = _wait(server, awaited)
    finally:
        server.kill()
        server.process.wait(10)
    return unfinished


def _unload_all(server: Stoppable) -> set[str] | None:
    """Ask the loaded models to end; return those that have work to finish, None: unknown."""
    try:
        states = server.states(ASK_S)
    except ServerError:
        return None
    # one that is still loading has no requests; Triton ends what did not take this one
    with suppress(ServerError):
        for name, state in states.items():
            if state == "READY":
                server.start_unload(name, ASK_S)
    return {name for name, state in states.items() if state in ("READY", "UNLOADING")}


def _wait(server: Stoppable, awaited: set[str] | None) -> list[str]:
    """Wait until the server ended, or has only idle connections, or its time is over."""
    deadline = time.monotonic() + server.exit_timeout_s
    grace_ends: float | None = None
    while True:
        with suppress(TimeoutExpired):
            server.process.wait(POLL_S)
            return []
        alive = {stub.model for stub in server.stubs()}
        busy = alive if awaited is None else alive & awaited
        now = time.monotonic()
        grace_ends = None if busy else grace_ends or now + GRACE_S
        if now > deadline or (grace_ends is not None and now > grace_ends):
            return sorted(busy)
