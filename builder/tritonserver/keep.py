# SPDX-License-Identifier: Apache-2.0
"""Keep models served: load them, and load them again when their process or the server ended.

`look()` is called again and again from the main thread; each model that is away has a worker
thread, so that none waits for another. What was served is loaded again, with growing pauses, until
it is served or somebody unloads it; meanwhile a stand-in answers its callers with UNAVAILABLE.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.console import fail, say, warn
from builder.tritonserver import connections, stand_in, stubs
from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import instances
from builder.tritonserver.room import Room
from builder.tritonserver.server import Server, StubDiedError
from builder.tritonserver.stubs import Stub

ASK_S = 2.0
"""How often the server is asked for its models where nothing changed."""
HEALTHY_S = 60.0
"""A server that lived this long begins with the shortest pause again."""
LONGEST_PAUSE_S = 30.0
DEATHS_AT_ONCE = 2
"""Of a model's process within HEALTHY_S, after which it is loaded again without a pause."""
FIRST_TRIES = 3
"""Of a model that was never served and whose process, or the server, dies while it loads."""
START_TRIES = 5
"""Of a server that does not come up again."""
GONE_S = 3.0
"""What Triton has to let go of a dead process; if it does not, requests were lost."""
LOST_GRACE_S = 15.0
"""What requests of living processes have to finish before connections of lost ones are ended."""
HUNG_S = 15.0
WORK = re.compile(r"^triton_diffusers_(?:running|queue_length)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'model_instance="(.*?)"')
DIED = re.compile(r"Stub process .* is not healthy|health mutex|unexpectedly", re.IGNORECASE)


@dataclass
class Kept:
    """A model that is to be served."""

    name: str
    served: bool = False
    """It was READY once: from then on it is never given up."""
    config: dict[str, Any] = field(default_factory=dict)
    failures: int = 0
    worker: threading.Thread | None = None
    deaths: list[float] = field(default_factory=list)
    """When its process died, in the last HEALTHY_S."""

    @property
    def is_away(self) -> bool:
        """Tell whether it is being loaded."""
        return self.worker is not None and self.worker.is_alive()

    def note_death(self, now: float) -> None:
        """Let the pauses grow of a model whose process dies again and again."""
        self.deaths = [at for at in self.deaths if now - at < HEALTHY_S] + [now]
        self.failures = max(0, len(self.deaths) - DEATHS_AT_ONCE)


@dataclass(frozen=True)
class Lost:
    """A process that died and that Triton does not let go: requests wait for it."""

    model: str
    at: float
    clients: dict[str, int]
    living: frozenset[int]


class Keeper:
    """Keeps the models of one server served."""

    def __init__(self, server: Server, repository: Path | None = None) -> None:
        """repository: where the sizes of models are read; None: they load one by one."""
        self.restarts = 0
        """How often the server was started again."""
        self.reloads: Counter[str] = Counter()
        """How often a model was loaded again because its process died."""
        self._server = server
        self._room = Room(repository)
        self._models: dict[str, Kept] = {}
        self._generation = 0
        self._falls = 0
        self._up_since = time.monotonic()
        self._hung: str | None = None
        self._healed: list[str] = []
        self._seen: set[Stub] | None = None
        self._ask_at = 0.0
        self._serving: dict[str, str] = {}  # region of a stub that served -> its model
        self._replaced: set[int] = set()  # stubs whose model was loaded again since
        self._lost: dict[str, Lost] = {}
        self._told: set[str] = set()
        self._done: set[str] = set()  # regions of which nothing more is expected

    def load_first(self, names: Sequence[str], pause_s: float = 0.1) -> list[str]:
        """Load models side by side; return those that are served once all were tried."""
        self._models = {name: Kept(name) for name in names}
        for kept in list(self._models.values()):
            self._start(kept)
        while any(not kept.served for kept in self._models.values()):
            self.look()
            time.sleep(pause_s)
        return [name for name in names if name in self._models]

    def away(self) -> list[str]:
        """Return the models that are to be served and are being loaded."""
        return sorted(kept.name for kept in list(self._models.values()) if kept.is_away)

    def close(self) -> None:
        """Begin nothing more: the server is about to be stopped."""
        self._generation += 1

    def look(self) -> None:
        """Look at the server once and begin what has to be done. Call it from the main thread.

        Raises ServerError where the server cannot be started again.
        """
        if not self._server.is_running():
            self._restart(f"ended by itself: {self._server.why_ended()}")
            return
        if self._hung:
            self._restart(self._hung)
            return
        seen = set(self._server.stubs())
        self._look_for_lost(seen)
        if seen != self._seen or time.monotonic() >= self._ask_at:
            # one that is busy or about to end is asked again next time
            with suppress(ServerError):
                self._look_at_models()
                self._seen, self._ask_at = seen, time.monotonic() + ASK_S
                stubs.remove_dead_regions(self._server.pid, self._server.regions)
        if self._healed and not self.away():
            say(f"ready again: {', '.join(sorted(set(self._healed)))}")
            self._healed = []

    # -- models

    def _look_at_models(self) -> None:
        busy = {name for name, kept in list(self._models.items()) if kept.is_away}
        found = self._server.states_and_reasons()
        for name, (state, reason) in found.items():
            kept = self._models.get(name)
            if name in busy or (kept and kept.is_away):
                continue
            if state == "READY":
                kept = self._models.setdefault(name, Kept(name))
                kept.served = True
                self._look_at(kept)
            elif kept is not None and state == "UNAVAILABLE":
                if reason == "unloaded":
                    self._models.pop(name)
                    if kept.failures:  # its worker was about to load it
                        say(f"model '{name}' was unloaded: it is not loaded again")
                else:
                    self._start(kept)
        for kept in list(self._models.values()):
            if kept.name not in found and kept.name not in busy and not kept.is_away:
                self._start(kept)

    def _look_at(self, kept: Kept) -> None:
        """Find out whether a model that Triton calls READY is, and load it again if not."""
        config = self._server.config(kept.name)
        if stand_in.is_stand_in(config):
            self._start(kept)
            return
        kept.config = config
        living = self._stubs_of(kept.name)
        if len(living) >= instances(config):
            self._serve(kept)
            kept.failures = 0
        # still ready: its stub did not go because somebody is unloading it
        elif self._server.states().get(kept.name) == "READY":
            warn(f"the Python process of model '{kept.name}' died; loading it again")
            # its process may have gone before anybody saw it
            for region in stubs.mapped_regions(self._server.pid, self._server.regions):
                self._serving.setdefault(region, kept.name)
            kept.note_death(time.monotonic())
            self.reloads[kept.name] += 1
            self._count()
            self._start(kept, living)

    def _serve(self, kept: Kept) -> None:
        """Remember the processes of a model: requests may wait for them from now on."""
        found = self._stubs_of(kept.name)
        self._serving.update((stub.region_name, kept.name) for stub in found)

    def _stubs_of(self, name: str) -> list[Stub]:
        stubs_ = self._server.stubs()
        return [s for s in stubs_ if s.model == name and s.pid not in self._replaced]

    def _start(self, kept: Kept, living: Sequence[Stub] = ()) -> None:
        """Begin to load a model. living: its processes that still may have work."""
        arguments = (kept, self._generation, list(living))
        name = f"keep {kept.name}"
        kept.worker = threading.Thread(target=self._work, args=arguments, name=name, daemon=True)
        kept.worker.start()

    def _work(self, kept: Kept, generation: int, living: Sequence[Stub]) -> None:
        """Load a model, again and again, until it is served or nobody wants it."""

        def is_wanted() -> bool:
            return generation == self._generation and self._models.get(kept.name) is kept

        again = kept.served
        with suppress(ServerError):  # the server ended: it is started again with all of them
            if again:
                self._put_stand_in(kept)
                self._let_finish(living)
            while is_wanted() and not self._pause(kept, is_wanted):
                if self._load(kept, is_wanted):
                    break
            if again and is_wanted() and kept.served:
                self._healed.append(kept.name)

    def _load(self, kept: Kept, is_wanted: Callable[[], bool]) -> bool:
        """Load a model once; tell whether its worker is done."""
        with self._room.for_load(kept.name):
            if not is_wanted():
                return True
            started = time.monotonic()
            try:
                self._server.load(kept.name)
                config = self._server.config(kept.name)
            except ServerError as error:
                if not is_wanted() or not self._server.is_running():
                    return True
                return self._failed(kept, error)
            if is_wanted():
                self._serve(kept)
        say(f"loaded {kept.name} in {time.monotonic() - started:.1f} s")
        kept.config, kept.served, kept.failures = config, True, 0
        return True

    def _failed(self, kept: Kept, error: ServerError) -> bool:
        """Tell why a model did not load, and whether that is the end of it."""
        kept.failures += 1
        died = isinstance(error, StubDiedError) or DIED.search(str(error)) is not None
        hangs = isinstance(error, StubDiedError) and not self._lets_go(kept.name)
        # Triton keeps the reason for a wrong config.pbtxt to its log
        hint = f"; builder check {kept.name} says why" if "failed to poll" in str(error) else ""
        if not kept.served and (hangs or not died or kept.failures >= FIRST_TRIES):
            fail(f"model '{kept.name}' did not load: {error}{hint}")
            self._models.pop(kept.name, None)
            return True
        pause = pause_s(kept.failures)
        warn(f"model '{kept.name}' did not load: {error}{hint}; trying again in {pause:.0f} s")
        if hangs:
            self._hung = f"does not let go of the dead process of model '{kept.name}'"
            return True
        if kept.served:
            self._put_stand_in(kept)
        return False

    def _lets_go(self, name: str) -> bool:
        """Wait until Triton calls a load failed whose process died."""
        end = time.monotonic() + HUNG_S
        while time.monotonic() < end:
            if self._server.states().get(name) != "LOADING":
                return True
            time.sleep(0.5)
        return False

    def _pause(self, kept: Kept, is_wanted: Callable[[], bool]) -> bool:
        """Wait before the next try; tell whether somebody else loaded or unloaded the model."""
        end = time.monotonic() + pause_s(kept.failures)
        while kept.served:
            state, reason = self._server.states_and_reasons().get(kept.name, ("", ""))
            if state == "UNAVAILABLE" and reason == "unloaded":
                self._models.pop(kept.name, None)
                say(f"model '{kept.name}' was unloaded: it is not loaded again")
                return True
            if kept.failures and state == "READY":
                config = self._server.config(kept.name)
                if not stand_in.is_stand_in(config) and self._stubs_of(kept.name):
                    return True
            if time.monotonic() >= end:
                break
            time.sleep(0.5)
            if not is_wanted():
                return True
        else:
            time.sleep(max(0.0, end - time.monotonic()))
        return False

    def _put_stand_in(self, kept: Kept) -> None:
        """Let callers of a model that is away hear UNAVAILABLE."""
        state, reason = self._server.states_and_reasons().get(kept.name, ("", ""))
        unloaded = state == "UNAVAILABLE" and reason == "unloaded"
        if not kept.config or unloaded:
            return
        if state == "READY" and stand_in.is_stand_in(self._server.config(kept.name)):
            return
        try:
            self._server.load(kept.name, timeout_s=60, instead=stand_in.files(kept.config))
        except ServerError as error:
            if self._server.is_running():
                warn(f"callers of model '{kept.name}' hear NOT_FOUND while it loads: {error}")

    def _let_finish(self, living: Sequence[Stub]) -> None:
        """Let the living processes of a model finish what they run, then end them.

        Triton does not: it keeps all instances of a model while requests wait for a dead one.
        """
        started = time.monotonic()
        self._replaced.update(stub.pid for stub in living)
        while (left := set(living) & set(self._server.stubs())) and self._server.is_running():
            waited = time.monotonic() - started
            if waited > LOST_GRACE_S or (waited > GONE_S and not self._have_work(left)):
                for stub in left:
                    self._done.add(stub.region_name)
                    with suppress(ProcessLookupError):
                        os.kill(stub.pid, signal.SIGKILL)
            time.sleep(0.2)

    # -- requests that nobody will answer

    def _look_for_lost(self, seen: set[Stub]) -> None:
        """Notice dead processes that requests wait for, and end the connections of these.

        Triton keeps the shared memory of a dead process as long as requests wait for it.
        """
        now, server = time.monotonic(), self._server
        orphans = set(self._serving) - {stub.region_name for stub in seen}
        if orphans:
            mapped = stubs.mapped_regions(server.pid, server.regions)
            for region in orphans - mapped:
                del self._serving[region]
            orphans &= mapped - self._done
        self._lost = {region: lost for region, lost in self._lost.items() if region in orphans}
        for region in orphans - set(self._lost):
            clients = connections.clients(server.pid, server.ports.http, server.ports.grpc)
            living = frozenset(stub.pid for stub in seen)
            self._lost[region] = Lost(self._serving[region], now, clients, living)
        for region, lost in list(self._lost.items()):
            waited = now - lost.at
            if waited < GONE_S:
                continue
            self._tell_lost(region, lost)
            if waited < LOST_GRACE_S and self._have_work(s for s in seen if s.pid in lost.living):
                continue
            self._end_lost(region, lost)

    def _tell_lost(self, region: str, lost: Lost) -> None:
        if region in self._told:
            return
        self._told.add(region)
        warn(
            f"requests that model '{lost.model}' was running are lost (or a probe is): the "
            "connections of their clients are ended once others are answered, "
            f"{LOST_GRACE_S:.0f} s after the death at the latest"
        )

    def _end_lost(self, region: str, lost: Lost) -> None:
        self._done.add(region)
        (stubs.SHARED_MEMORY / region).unlink(missing_ok=True)
        server = self._server
        if connections.can_end(server.pid):
            ports = server.ports
            connections.end(server.pid, ports.http, ports.grpc, lost.clients, lost.at)
        else:
            self._hung = f"holds requests that model '{lost.model}' lost"

    def _have_work(self, living: Iterable[Stub]) -> bool:
        """Tell whether processes have work: their metrics say so, or say nothing."""
        by_process = [set(stub.arguments) for stub in living]
        if not by_process:
            return False
        try:
            found = WORK.findall(self._server.metrics())
        except ServerError:
            return True
        for words in by_process:
            counts = [float(n) for labels, n in found if words & set(LABEL.findall(labels))]
            if not counts or any(counts):
                return True
        return False

    # -- the server

    def _restart(self, why: str) -> None:
        """Start the server again, with what was served; what never was gets few tries."""
        self._server.kill()
        self._generation += 1  # what its workers do is over
        if time.monotonic() - self._up_since > HEALTHY_S:
            self._falls = 0
        for tries in range(1, START_TRIES + 1):
            pause = pause_s(self._falls)
            warn(f"tritonserver {why}; starting it again" + (f" in {pause:.0f} s" * (pause > 0)))
            time.sleep(pause)
            self._falls += 1
            self.restarts += 1
            self._count()
            try:
                self._server.start_again()
                break
            except ServerError as error:
                if tries == START_TRIES:
                    raise
                why = f"did not come up: {error}"
        self._forget()
        for kept in list(self._models.values()):
            if not kept.served:
                kept.failures += 1
                if kept.failures >= FIRST_TRIES:
                    fail(f"model '{kept.name}' did not load: tritonserver ended each time")
                    self._models.pop(kept.name)
                    continue
            self._start(kept)

    def _forget(self) -> None:
        """Forget what was known of the processes of a server that ended."""
        self._up_since = time.monotonic()
        self._hung, self._seen = None, None
        for known in (self._serving, self._replaced, self._lost, self._done, self._told):
            known.clear()

    def _count(self) -> None:
        with suppress(OSError):
            self._server.count({"restarts": self.restarts, "reloads": dict(self.reloads)})


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row: 0, 1, 2, 4 ... seconds."""
    return 0.0 if failures < 1 else min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 10))
