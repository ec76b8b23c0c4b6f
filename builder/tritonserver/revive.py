# SPDX-License-Identifier: Apache-2.0
"""Load models, and load them again when their process died, with a line for each."""

import re
import time
from collections.abc import Sequence

from builder.console import busy, fail, say, warn
from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server

UNLOAD_TIMEOUT_S = 10.0
WORK = re.compile(r"^triton_diffusers_(?:running|queue_length)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'model_instance="(.*?)"')


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
        f"requests that {_models(held)} was running are lost (or a probe is); starting "
        "tritonserver again, so that their clients get an error (requests to other models are "
        "finished first)"
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
    """Tell whether living instances of a model have work: their metrics say so, or say nothing.

    They cannot be asked: a request that meets the dead one keeps Triton from letting go of it.
    """
    words = {word for stub in server.stubs() if stub.model == name for word in stub.arguments}
    if not words:
        return False
    try:
        found = WORK.findall(server.metrics())
    except ServerError:
        return True
    counts = [float(count) for labels, count in found if words & set(LABEL.findall(labels))]
    return not counts or any(counts)


def _models(names: Sequence[str]) -> str:
    return ", ".join(f"model '{name}'" for name in names)
