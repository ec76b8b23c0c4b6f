# SPDX-License-Identifier: Apache-2.0
"""A real tritonserver as a child process: find it, start it, load models, stop it.

Standard library only: tests, benchmarks and `builder serve` share it.
"""

import json
import os
import queue
import re
import secrets
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from builder.tritonserver import installation, stopping, stubs
from builder.tritonserver.installation import ServerError
from builder.tritonserver.launch import Leash, Leftovers, launch
from builder.tritonserver.model_config import instances
from builder.tritonserver.options import REGION_OPTION, hide_key, refuse_owned, triton_options
from builder.tritonserver.ports import Ports, choose_ports
from triton_diffusers.config import admin_key
from triton_diffusers.contract import ADMIN_HEADER, COUNTS

START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 30
"""What requests have to finish when the server is told to end; nothing else uses it up."""
LOAD_TIMEOUT_S = 3600.0
DEATH_GRACE_S = 3.0
"""How long Triton may take to tell that a stub ended while its model was loading."""
ASK_TIMEOUT_S = 5.0
LOG_BYTES = 64 << 10
"""How much of the log's end is looked at for the reason of an end."""
LAST_LINES = 15
COUNTS_FILE = "counts.json"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment is not for our own server."""
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}


Spawn = Callable[[], "tuple[subprocess.Popen[bytes], Leash]"]


class Server:
    """A running tritonserver in explicit model control; a context manager that stops it."""

    def __init__(
        self,
        spawn: Spawn,
        leftovers: Leftovers,
        host: str,
        ports: Ports,
        log: Path | None,
        exit_timeout_s: float,
        key: str,
    ) -> None:
        self._log_from = 0 if log is None or not log.exists() else log.stat().st_size
        self.process, self._leash = spawn()
        self.ports = ports
        self.admin_key = key
        """What administrative calls need."""
        self.log = log
        self.exit_timeout_s = exit_timeout_s
        self.unfinished: list[str] = []
        """Models that had requests when the server was ended."""
        self._spawn = spawn
        self._leftovers = leftovers
        self._model_of: dict[int, str] = {}
        self._counts = Path(leftovers.paths[0], COUNTS_FILE)
        self._host = LOOPBACK.get(host, host)

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server, which is its process group too."""
        return self.process.pid

    @property
    def http_url(self) -> str:
        """Host and port as tritonclient.http wants them."""
        return f"{self._host}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """Host and port as tritonclient.grpc wants them."""
        return f"{self._host}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """Host and port of /metrics."""
        return f"{self._host}:{self.ports.metrics}"

    def is_running(self) -> bool:
        """Tell whether the process is there."""
        return self.process.poll() is None

    @property
    def regions(self) -> str:
        """How the names of its stubs' shared memory begin."""
        return self._leftovers.regions

    def why_ended(self) -> str:
        """Tell how the process ended: its exit code or signal, and what it said last."""
        code = self.process.wait(10)
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            how += ", as when memory runs out"
        said = " | ".join(self._last_words())
        return f"{how}; its last words: {said}" if said else how

    def is_ready(self) -> bool:
        """Tell whether the server answers."""
        try:
            self._ask("GET", "health/ready", timeout_s=5)
        except (ServerError, OSError):
            return False
        return True

    def load(
        self,
        name: str,
        timeout_s: float = LOAD_TIMEOUT_S,
        instead: Mapping[str, str] | None = None,
    ) -> None:
        """Load or reload a model.

        instead: what Triton takes in the place of the entry's files, as its load call has it.
        Raises ServerError with Triton's reason, or when the server ended or the model's Python
        process died: Triton itself would wait for it for ever.
        """
        outcome: queue.SimpleQueue[ServerError | None] = queue.SimpleQueue()
        process, death = self.process, _Death(self, name)

        def ask() -> None:
            try:
                self._ask("POST", f"repository/models/{name}/load", timeout_s, instead)
                outcome.put(None)
            except ServerError as error:
                outcome.put(error)

        threading.Thread(target=ask, name=f"load {name}", daemon=True).start()
        while True:
            with suppress(queue.Empty):
                error = outcome.get(timeout=0.2)
                if error is not None:
                    raise error
                return
            # the call itself may not break then: stubs hold the server's sockets too
            if self.process is not process or not self.is_running():
                raise ServerError(f"tritonserver ended while '{name}' was loading")
            if death.is_certain():
                last = " ".join(self.log_tail(3).split())
                raise StubDiedError(f"the Python process of '{name}' died while loading: {last}")

    def unload(self, name: str, timeout_s: float = 120.0) -> None:
        """Unload a model and wait until it is gone, so that its memory is free."""
        self.start_unload(name, timeout_s)
        deadline = time.monotonic() + timeout_s
        while self.states(timeout_s=30).get(name) in ("READY", "UNLOADING"):
            if time.monotonic() > deadline:
                raise ServerError(f"model '{name}' did not unload within {timeout_s:.0f} s")
            time.sleep(0.05)

    def start_unload(self, name: str, timeout_s: float) -> None:
        """Unload a model as soon as its requests are answered; it takes no new ones."""
        self._ask("POST", f"repository/models/{name}/unload", timeout_s)

    def states(self, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, str]:
        """Return the state of every model that was ever loaded, such as READY."""
        return {name: state for name, (state, _) in self.states_and_reasons(timeout_s).items()}

    def states_and_reasons(self, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, tuple[str, str]]:
        """Return the same with Triton's reason, which is "unloaded" for what was told to go."""
        index = json.loads(self._ask("POST", "repository/index", timeout_s))
        return {m["name"]: (m["state"], m.get("reason", "")) for m in index if "state" in m}

    def config(self, name: str) -> dict[str, Any]:
        """Return the configuration of a loaded model, as Triton completed it."""
        return dict(json.loads(self._ask("GET", f"models/{name}/config", ASK_TIMEOUT_S)))

    def instances(self, name: str) -> int:
        """Return how many instances, and so stubs, a loaded model has."""
        return instances(self.config(name))

    def metrics(self) -> str:
        """Return the metrics as text."""
        return self._fetch(f"http://{self.metrics_url}/metrics", "GET", None, timeout_s=5)

    def stubs(self) -> list[stubs.Stub]:
        """Return the live Python stubs of this server."""
        found = stubs.find(self.pid)
        self._model_of.update((stub.pid, stub.model) for stub in found)
        return found

    def dead_stubs(self) -> dict[int, str | None]:
        """Return the processes of stubs that ended and were not reaped, and their models if known.

        A dead process has no command line: its model is known where it was seen alive.
        """
        return {pid: self._model_of.get(pid) for pid in stubs.dead(self.pid)}

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of the log."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_from, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def restart(self) -> None:
        """End the process, running requests first, and start another one without models."""
        stopping.end(self)
        self.start_again()

    def start_again(self) -> None:
        """Start another process on the same ports, without models; what is left of this one goes.

        Raises ServerError where it does not come up.
        """
        self._end_now()
        self._log_from = 0 if self.log is None or not self.log.exists() else self.log.stat().st_size
        self._model_of.clear()
        self.process, self._leash = self._spawn()
        _wait_until_ready(self)

    def count(self, counts: Mapping[str, Any]) -> None:
        """Write the counts that the entries of this server put in the metrics when they load."""
        written = self._counts.with_suffix(".new")
        written.write_text(json.dumps(counts))
        written.replace(self._counts)

    def stop(self) -> None:
        """End the server and everything that it started, running requests first."""
        try:
            self.unfinished = stopping.end(self)
        finally:
            self._end_now()
            self._leftovers.remove()

    def _end_now(self) -> None:
        self.kill()
        self.process.wait(10)
        self._leash.let_go()
        stubs.remove_regions(self.regions)

    def kill(self) -> None:
        """End the server, or what is left of its process group, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _ask(
        self, method: str, path: str, timeout_s: float, told: Mapping[str, str] | None = None
    ) -> str:
        data = json.dumps({"parameters": told} if told else {}).encode()
        url = f"http://{self.http_url}/v2/{path}"
        return self._fetch(url, method, data if method == "POST" else None, timeout_s)

    def _fetch(self, url: str, method: str, data: bytes | None, timeout_s: float) -> str:
        request = urllib.request.Request(url, data=data, method=method)
        request.add_header(ADMIN_HEADER, self.admin_key)
        try:
            with DIRECT.open(request, timeout=timeout_s) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            raise ServerError(read_reason(error.read().decode(errors="replace"))) from None
        except TimeoutError:
            raise ServerError(f"no answer from tritonserver within {timeout_s:.0f} s") from None
        except OSError as error:
            raise ServerError(self._lost(error)) from None

    def _lost(self, error: OSError) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
            return f"tritonserver stopped: {self.why_ended()}"
        return f"tritonserver does not answer: {error}"

    def _last_words(self) -> list[str]:
        """Return the lines of the log that tell most of an end: no frames, no requests."""
        lines = [line.strip() for line in self.log_tail(1000).splitlines()]
        lines = [line for line in lines if line and not _NOISE.search(line)]
        errors = [line for line in lines[-LAST_LINES:] if _ERROR_LINE.search(line)]
        # a wrong option is named first, before all the right ones are listed
        wrong = [line for line in lines if _WRONG_OPTION.search(line)]
        return wrong[:1] or errors[-3:] or lines[-3:]


class _Death:
    """Finds out whether a stub of a model that loads is dead, as opposed to any other's."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name
        self._older = {stub.pid for stub in server.stubs()}
        self._older.update(server.dead_stubs())
        self._ours: set[int] = set()
        self._since: float | None = None

    def is_certain(self) -> bool:
        """Tell whether one died, and Triton had the time to tell of it."""
        live = {s.pid for s in self._server.stubs() if s.model == self._name} - self._older
        self._ours |= live
        died = bool(self._ours - live)
        if not self._ours:
            # too quick to be seen alive: one whose model nobody knows
            dead = self._server.dead_stubs().items()
            died = any(model is None for pid, model in dead if pid not in self._older)
        now = time.monotonic()
        self._since = (self._since or now) if died else None
        return self._since is not None and now - self._since > DEATH_GRACE_S


class StubDiedError(ServerError):
    """The process of a model died while it loaded: killed or crashed, not refused."""


def start_server(
    repository: Path,
    models: Sequence[str] = (),
    *,
    log: Path | None,
    http_port: int = 0,
    grpc_port: int = 0,
    metrics_port: int = 0,
    host: str = "127.0.0.1",
    extra: Sequence[str] = (),
    exit_timeout_s: int = EXIT_TIMEOUT_S,
    key: str | None = None,
) -> Server:
    """Start a server, wait until it answers, load `models`; port 0 is a free one.

    log: file for the server's output, or None for our own stderr.
    key: what administrative calls need; None: a new one, which only programs of the same user on
    this machine can find.
    Raises ServerError when it does not start or a model does not load.
    """
    refuse_owned(extra)
    binary = installation.find()
    key = key or admin_key.new_key()
    ports = choose_ports(host, Ports(http_port, grpc_port, metrics_port))
    layout = Path(tempfile.mkdtemp(prefix="triton-diffusers-"))
    regions = f"{stubs.REGION}{secrets.token_hex(4)}_"
    command = [
        *installation.command(binary, layout),
        # our exit timeout comes first: at its own one Triton may crash
        *triton_options(
            _without_spaces(repository.resolve(), layout), host, ports, exit_timeout_s + 60, key
        ),
        f"--backend-config=python,{REGION_OPTION}={regions}",
        *extra,
    ]
    paths = [layout, _link(layout)]
    leftovers = Leftovers(regions, paths, key, [ports.http, ports.grpc])
    env = installation.environment(binary) | {COUNTS: str(layout / COUNTS_FILE)}
    spawn = partial(_spawn, command, env, log, leftovers)
    server = Server(spawn, leftovers, host, ports, log, exit_timeout_s, key)
    try:
        with suppress(OSError):  # without it, what needs the key does without
            admin_key.leave_local(key, ports.http, ports.grpc)
        _wait_until_ready(server)
        for name in models:
            server.load(name)
    except BaseException:
        server.stop()
        raise
    return server


def _without_spaces(repository: Path, layout: Path) -> Path:
    """Return a path to the repository that Triton can hand to a stub: it splits paths at spaces."""
    if not re.search(r"\s", str(repository)):
        return repository
    link = _link(layout)
    link.symlink_to(repository, target_is_directory=True)
    return link


def _link(layout: Path) -> Path:
    return layout.with_name(f"{layout.name}-repository")


def read_reason(body: str) -> str:
    """Return the reason inside an error answer of Triton, on one line, without the traceback."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body
    _, _, reason = text.rpartition("UNAVAILABLE state: ")
    reason = (reason or text).split("\n\nAt:")[0].removeprefix("Internal: ")
    reason = re.sub(r"^\[StatusCode\.\w+\] ", "", reason)  # as a decoupled model's entry writes it
    return " ".join(reason.split()).rstrip(" ;")


_ERROR_LINE = re.compile(r"^E\d{4} |error|failed|terminate called|what\(\)|^Signal|assert", re.I)
_WRONG_OPTION = re.compile(r"unrecognized option|invalid option|requires an argument")
_NOISE = re.compile(
    r"^\d+# |^[+|]|: \{|NVML|CudaDriverHelper|DCGM|pinned|config modification time", re.I
)


def _spawn(
    command: list[str], env: dict[str, str], log: Path | None, leftovers: Leftovers
) -> "tuple[subprocess.Popen[bytes], Leash]":
    # a session of its own: Ctrl-C reaches us first, and its stubs can be ended as one group
    arguments: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL}
    if log is None:
        return launch(command, leftovers, stdout=2, stderr=2, **arguments)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return launch(command, leftovers, stdout=file, stderr=subprocess.STDOUT, **arguments)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.is_ready():
        if not server.is_running():
            raise ServerError(f"tritonserver stopped: {server.why_ended()}")
        if time.monotonic() > deadline:
            raise ServerError(f"tritonserver did not answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    hide_key(server.pid, server.admin_key)
