# SPDX-License-Identifier: Apache-2.0
"""`builder serve` with tiny entries, as an operator runs it, and callers that compare answers."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from builder.tritonserver import stubs
from tests.campaign.tally import Tally
from tests.server.entries import ENTRIES, write_entries
from tests.server.wire import PROTOCOLS, infer, make_inputs

START_S, HEAL_S, END_S = 300, 180, 60
ANSWER_S = 60.0
"""A request that has no answer by then is counted as never answered."""
NAMES = ("pictures", "streams")
"""The entries that callers ask: one that answers once, and a decoupled one."""
SEEDS, STEPS = 4, (1, 2, 3, 8)
TIMED_OUT = re.compile(r"deadline exceeded|timed out|timeout", re.I)
SHARED_MEMORY = Path("/dev/shm")


class Serving:
    """A running `builder serve`. Its output is in `log`."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        with redirect_stdout(io.StringIO()):
            self.repository = write_entries(folder, {name: ENTRIES[name] for name in names})
        self.names = names
        self.log = folder / "serve.log"
        self.shared_memory_before = set(os.listdir(SHARED_MEMORY))
        self.start()

    def start(self) -> None:
        """Start it, and wait until the models are there."""
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        command = [sys.executable, "-m", "builder.main", "serve", *self.names, *ports]
        command += ["--repository", str(self.repository), "--exit-timeout", "10"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.http = self._wait_for(r"HTTP +http://(\S+)")
        self.grpc = self._wait_for(r"gRPC +(\S+)")

    def _wait_for(self, pattern: str) -> str:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            time.sleep(0.2)
        raise SystemExit(f"builder serve did not start:\n{self.log.read_text()[-3000:]}")

    def server_pid(self) -> int | None:
        """The process id of its tritonserver; None while there is none."""
        for pid in children(self.process.pid):
            if _name(pid) == "tritonserver":
                return pid
        return None

    def stub_pids(self) -> list[int]:
        """The process ids of the Python stubs that live, also of those that load."""
        pid = self.server_pid()
        return [] if pid is None else [stub.pid for stub in stubs.find(pid)]

    def end(self, tally: Tally, by: int = signal.SIGTERM) -> None:
        """End it and count what is left behind."""
        groups = {pid for pid in (self.server_pid(), self.process.pid) if pid}
        self.process.send_signal(by)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        end = time.monotonic() + END_S
        while (left := self._left(groups)) and time.monotonic() < end:
            time.sleep(0.2)
        for what in left:
            tally.count("leaked", what)
        if self.process.poll() is None:
            self.process.kill()

    def _left(self, groups: set[int]) -> list[str]:
        left = [f"process {_name(pid)}" for pid in processes() if _group(pid) in groups]
        made = set(os.listdir(SHARED_MEMORY)) - self.shared_memory_before
        regions = {name for name in made if name.startswith("triton_python_backend_shm")}
        return left + [f"shared memory {name}" for name in regions if not _is_mapped(name)]


def processes() -> Iterator[int]:
    """The process ids of what runs; what ended and waits for its parent does not."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if _stat(int(folder.name))[0] != "Z":
                yield int(folder.name)


def children(parent: int) -> list[int]:
    """The process ids of what `parent` started itself."""
    found = []
    for pid in processes():
        with suppress(OSError, IndexError):
            if int(_stat(pid)[1]) == parent:
                found.append(pid)
    return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _group(pid: int) -> int | None:
    with suppress(OSError, IndexError):
        return int(_stat(pid)[2])
    return None


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_mapped(region: str) -> bool:
    for pid in processes():
        with suppress(OSError):
            if region in Path(f"/proc/{pid}/maps").read_text():
                return True
    return False


class Callers:
    """Threads that ask again and again, and compare what comes with what a calm server said."""

    def __init__(self, serving: Serving, tally: Tally, number: int, seed: int) -> None:
        self.tally, self._serving = tally, serving
        self.answered = dict.fromkeys(NAMES, 0.0)
        """Entry -> when the newest request was sent that was answered exactly."""
        self._ids = iter(range(10**9))
        self._stopped = threading.Event()
        self._finals: dict[str, int] = {}
        self._wanted = self._ask_calm()
        self._threads = [
            threading.Thread(target=self._call, args=[random.Random(f"{seed} {i}")], daemon=True)
            for i in range(number)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        end = time.monotonic() + 2 * ANSWER_S
        for thread in self._threads:
            thread.join(max(0, end - time.monotonic()))
            if thread.is_alive():
                self.tally.count("never", "a caller hangs")
        for finals in self._finals.values():
            if finals > 1:
                self.tally.count("twice")

    def heals(self, names: tuple[str, ...] = NAMES, since: float | None = None) -> bool:
        """Wait until each entry answered a request exactly that was sent from now on."""
        since = time.monotonic() if since is None else since
        end = time.monotonic() + HEAL_S
        while not all(self.answered[name] > since for name in names):
            if time.monotonic() > end or self._serving.process.poll() is not None:
                return False
            time.sleep(0.2)
        return True

    def _ask_calm(self) -> dict[tuple[int, int], np.ndarray]:
        client = tritonclient.grpc.InferenceServerClient(self._serving.grpc)
        asked = [(seed, steps) for seed in range(SEEDS) for steps in STEPS]
        return {key: infer(client, "grpc", "pictures", _inputs(*key))["images"] for key in asked}

    def _call(self, draw: random.Random) -> None:
        while not self._stopped.is_set():
            name = draw.choice(NAMES)
            protocol = draw.choice(PROTOCOLS) if name == "pictures" else "stream"
            self.ask(name, protocol, (draw.randrange(SEEDS), draw.choice(STEPS)))

    def ask(self, name: str, protocol: str, key: tuple[int, int]) -> None:
        """Send one request and count what came."""
        sent = time.monotonic()
        self.tally.count("sent")
        try:
            found = (self._stream if protocol == "stream" else self._infer)(name, protocol, key)
        except Exception as error:  # of three libraries, whatever it is
            late = time.monotonic() - sent > ANSWER_S - 1 and TIMED_OUT.search(str(error))
            self.tally.count("never" if late else "refused", f"{str(error).strip()[:80]}")
            time.sleep(0.2)  # or most requests would meet a model that is gone
            return
        if np.array_equal(found, self._wanted[key]):
            self.tally.count("exact")
            self.answered[name] = max(sent, self.answered[name])
        else:
            self.tally.count("wrong", name)

    def _infer(self, name: str, protocol: str, key: tuple[int, int]) -> np.ndarray:
        client = self._connect(protocol)
        try:
            return infer(client, protocol, name, _inputs(*key))["images"]
        finally:
            client.close()

    def _connect(self, protocol: str) -> Any:
        if protocol == "grpc":
            return tritonclient.grpc.InferenceServerClient(self._serving.grpc)
        times = {"network_timeout": ANSWER_S, "connection_timeout": ANSWER_S}
        return tritonclient.http.InferenceServerClient(self._serving.http, **times)

    def _stream(self, name: str, protocol: str, key: tuple[int, int]) -> np.ndarray:
        number = str(next(self._ids))
        done, images, errors = threading.Event(), [], []

        def take(result: Any, error: Any) -> None:
            if done.is_set() and error is not None:
                return  # our own end of the stream
            if error is not None:
                errors.append(error)
                done.set()
            elif (image := result.as_numpy("images")) is not None and image.size:
                self._finals[number] = self._finals.get(number, 0) + 1
                images.append(image)
                done.set()

        client = tritonclient.grpc.InferenceServerClient(self._serving.grpc)
        try:
            client.start_stream(take)
            client.async_stream_infer(name, make_inputs("grpc", _inputs(*key)), request_id=number)
            if not done.wait(ANSWER_S):
                raise InferenceServerException("timed out")
        finally:
            client.stop_stream(cancel_requests=True)
            client.close()
        if errors:
            raise errors[0]
        return images[0]


def _inputs(seed: int, steps: int) -> dict[str, Any]:
    return {"prompt": f"a fox {seed}", "seed": seed, "num_inference_steps": steps}


@contextmanager
def serving(folder: Path, tally: Tally, names: tuple[str, ...] = NAMES) -> Iterator[Serving]:
    """Serve entries; count what is left behind at the end."""
    running = Serving(folder, names)
    try:
        yield running
    finally:
        running.end(tally)
