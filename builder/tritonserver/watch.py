# SPDX-License-Identifier: Apache-2.0
"""Notice models whose Python stub died; Triton does not: their readiness stays 200."""

from collections import Counter
from contextlib import suppress

from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server
from builder.tritonserver.stubs import Stub


class Watch:
    """Looks at the server's stubs again and again; asks the server only when they changed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: set[Stub] | None = None  # the first look always asks

    def dead_models(self) -> list[str]:
        """Return the models that Triton calls READY with fewer stubs than instances."""
        seen = set(self._server.stubs())
        if seen == self._seen:
            return []
        dead: list[str] = []
        # a server that is busy or about to end is asked again next time
        with suppress(ServerError):
            dead = self._find_dead()
            self._seen = seen
        return dead

    def _find_dead(self) -> list[str]:
        ready = self._ready()
        counts = Counter(stub.model for stub in self._server.stubs())
        short = [m for m in ready if counts[m] < self._server.instances(m)]
        # still ready: its stub did not go because somebody is unloading it
        return sorted(set(short) & self._ready()) if short else []

    def _ready(self) -> set[str]:
        return {model for model, state in self._server.states().items() if state == "READY"}
