# SPDX-License-Identifier: Apache-2.0
"""A real tritonserver as a child process: find it, start it, load models, stop it.

Standard library only: tests, benchmarks and `builder serve` share it.
"""

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from builder.tritonserver import installation, stopping, stubs
from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import instances
from builder.tritonserver.options import hide_key, refuse_owned, triton_options
from builder.tritonserver.ports import Ports, choose_ports
from triton_diffusers.config import admin_key
from triton_diffusers.contract import ADMIN_HEADER

START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 30
"""What requests have to finish when the server is told to end; nothing else uses it up."""
LOAD_TIMEOUT_S = 3600.0
DEATH_GRACE_S = 3.0
"""How long Triton may take to tell that a stub ended while its model was loading."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment is not for our own server."""
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}


class Server:
    """A running tritonserver in explicit model control; a context manager that stops it."""

    def __init__(
        self,
        spawn: "Callable[[], subprocess.Popen[bytes]]",
        layout: Path,
        host: str,
        ports: Ports,
        log: Path | None,
        exit_timeout_s: float,
        key: str,
    ) -> None:
        self.process = spawn()
        self.ports = ports
        self.admin_key = key
        """What administrative calls need."""
        self.log = log
        self.exit_timeout_s = exit_timeout_s
        self.unfinished: list[str] = []
        """Models that had requests when the server was ended."""
        self._spawn = spawn
        self._layout = layout
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

    def is_ready(self) -> bool:
        """Tell whether the server answers."""
        try:
            self._ask("GET", "health/ready", timeout_s=5)
        except (ServerError, OSError):
            return False
        return True

    def load(self, name: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load or reload a model.

        Raises ServerError with Triton's reason, or when the model's Python process died: Triton
        itself would wait for it for ever.
        """
        outcome: queue.SimpleQueue[ServerError | None] = queue.SimpleQueue()
        dead_before, died_at = stubs.dead(self.pid), None

        def ask() -> None:
            try:
                self._ask("POST", f"repository/models/{name}/load", timeout_s)
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
            if died_at is None and stubs.dead(self.pid) - dead_before:
                died_at = time.monotonic()
            if died_at is not None and time.monotonic() - died_at > DEATH_GRACE_S:
                last = " ".join(self.log_tail(3).split())
                raise ServerError(f"the Python process of '{name}' died while loading: {last}")

    def unload(self, name: str, timeout_s: float = 120.0) -> None:
        """Unload a model and wait until it is gone, so that its memory is free."""
        self.start_unload(name, timeout_s)
        deadline = time.monotonic() + timeout_s
        while self.states().get(name) in ("READY", "UNLOADING"):
            if time.monotonic() > deadline:
                raise ServerError(f"model '{name}' did not unload within {timeout_s:.0f} s")
            time.sleep(0.05)

    def start_unload(self, name: str, timeout_s: float) -> None:
        """Unload a model as soon as its requests are answered; it takes no new ones."""
        self._ask("POST", f"repository/models/{name}/unload", timeout_s)

    def states(self, timeout_s: float = 30.0) -> dict[str, str]:
        """Return the state of every model that was ever loaded, such as READY."""
        index = json.loads(self._ask("POST", "repository/index", timeout_s))
        return {model["name"]: model["state"] for model in index if "state" in model}

    def instances(self, name: str) -> int:
        """Return how many instances, and so stubs, a loaded model has."""
        return instances(json.loads(self._ask("GET", f"models/{name}/config", timeout_s=30)))

    def metrics(self) -> str:
        """Return the metrics as text."""
        return self._fetch(f"http://{self.metrics_url}/metrics", "GET", None, timeout_s=5)

    def stubs(self) -> list[stubs.Stub]:
        """Return the live Python stubs of this server."""
        return stubs.find(self.pid)

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of the log."""
        if self.log is None or not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def restart(self, lost: Collection[str] = ()) -> list[str]:
        """End the process and start another one on the same ports, without models.

        lost: models whose stub is dead, for whose requests nothing is waited. Returns those that
        had requests when their time was over.
        """
        unfinished = stopping.end(self, lost)
        self.process = self._spawn()
        _wait_until_ready(self)
        return unfinished

    def stop(self) -> None:
        """End the server and everything that it started, running requests first."""
        try:
            self.unfinished = stopping.end(self)
        finally:
            admin_key.remove_local(self.admin_key, self.ports.http, self.ports.grpc)
            shutil.rmtree(self._layout, ignore_errors=True)
            self._layout.with_name(f"{self._layout.name}-repository").unlink(missing_ok=True)

    def kill(self) -> None:
        """End the server, or what is left of its process group, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _ask(self, method: str, path: str, timeout_s: float) -> str:
        data = b"{}" if method == "POST" else None
        return self._fetch(f"http://{self.http_url}/v2/{path}", method, data, timeout_s)

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
        try:
            code = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return f"tritonserver does not answer: {error}"
        return f"tritonserver stopped with exit code {code}: {self._last_error()}"

    def _last_error(self) -> str:
        lines = [line.strip() for line in self.log_tail(1000).splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR_LINE.match(line)]
        # a wrong option is named first, before all the right ones are listed
        return (errors[-1:] or lines[:1] or ["its log is empty"])[0]


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
    command = [
        *installation.command(binary, layout),
        # our exit timeout comes first: at its own one Triton may crash
        *triton_options(
            _without_spaces(repository.resolve(), layout), host, ports, exit_timeout_s + 60, key
        ),
        *extra,
    ]
    env = installation.environment(binary)
    spawn = partial(_spawn, command, env, log)
    server = Server(spawn, layout, host, ports, log, exit_timeout_s, key)
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
    link = layout.with_name(f"{layout.name}-repository")
    link.symlink_to(repository, target_is_directory=True)
    return link


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


_ERROR_LINE = re.compile(r"E\d{4} |error|failed", re.IGNORECASE)


def _spawn(command: list[str], env: dict[str, str], log: Path | None) -> "subprocess.Popen[bytes]":
    arguments: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL}
    # a session of its own: Ctrl-C reaches us first, and its stubs can be ended as one group
    arguments["start_new_session"] = True
    if log is None:
        return subprocess.Popen(command, stdout=2, stderr=2, **arguments)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **arguments)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.is_ready():
        if not server.is_running():
            raise ServerError(server._lost(ConnectionError()))
        if time.monotonic() > deadline:
            raise ServerError(f"tritonserver did not answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    hide_key(server.pid, server.admin_key)
