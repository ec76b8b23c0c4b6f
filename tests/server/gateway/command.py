# SPDX-License-Identifier: Apache-2.0
"""`builder gateway` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60.0
BUILDER = (sys.executable, "-m", "builder.main", "gateway")


class Gateway:
    """A running `builder gateway`; its output is read as it comes."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str]):
        self.process = subprocess.Popen(
            [*BUILDER, "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        self.output = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL, once it listens."""
        return self.wait_for(r"API +(http://\S+)/v1")[1]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for output that matches."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self.output)):
            assert time.monotonic() < deadline, f"{pattern!r} is not in:\n{self.output}"
            assert self._thread.is_alive(), f"it ended without {pattern!r}:\n{self.output}"
            time.sleep(0.02)
        return found

    def stop(self, number: int = signal.SIGTERM, within_s: float = TIMEOUT_S) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(within_s)
        self._thread.join(TIMEOUT_S)
        return code

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line


@contextmanager
def start_gateway(folder: Path, *words: str, **variables: str) -> Iterator[Gateway]:
    """Start the command with its database in `folder`; it is ended in the end."""
    prefix = "TRITON_DIFFUSERS_GATEWAY_"
    places = {"DATABASE": f"sqlite:///{folder}/jobs.db", "FILES": str(folder / "files")}
    env = os.environ | {prefix + name: value for name, value in (places | variables).items()}
    gateway = Gateway(words, env)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait(TIMEOUT_S)
