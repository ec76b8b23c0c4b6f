# SPDX-License-Identifier: Apache-2.0
"""The servers to compare with, in processes of their own: with_fastapi.py, with_litserve.py."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.startup import free_ports
from benchmarks.work import ROOT

PACKAGES = {"fastapi": ("fastapi", "uvicorn"), "litserve": ("litserve",)}
PATHS = {"fastapi": "/generate", "litserve": "/predict"}
START_TIMEOUT_S = 180
EXIT_TIMEOUT_S = 15


class Rival:
    """A server in a process group of its own, which stands still unless it is measured.

    LitServe asks its queue a thousand times a second also when nobody calls it.
    """

    def __init__(self, kind: str, log: Path, batch_timeout_s: float) -> None:
        self.kind, self.path = kind, PATHS[kind]
        self.port = free_ports()[0]
        self.log = log
        command = [sys.executable, "-m", f"benchmarks.with_{kind}"]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, str(self.port), str(batch_timeout_s)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self.pid = self._process.pid

    def __enter__(self) -> "Rival":
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the server run while the context lasts."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """End the server, then what is left of its group."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)  # to all: LitServe's own children outlive it otherwise
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while time.monotonic() < deadline and self._signal(0):
            self._process.poll()
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self._process.wait(10)

    def _signal(self, number: int) -> bool:
        """Signal the whole group; False when there is nobody left in it."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        url = f"http://127.0.0.1:{self.port}/health"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            with suppress(OSError), direct.open(url, timeout=5) as response:
                if response.status == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise SystemExit(f"{self.kind} is not ready:\n{tail}")
            time.sleep(0.1)


def available(kind: str) -> bool:
    """Tell whether a server's packages are installed; say what to install where they are not."""
    missing = [name for name in PACKAGES[kind] if find_spec(name) is None]
    if missing:
        print(f"{kind} left out: pip install {' '.join(missing)}, or triton-diffusers[bench]")
    return not missing
