# SPDX-License-Identifier: Apache-2.0
"""`builder gateway` as a process of its own, for the demo and the benchmark."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60
EXIT_TIMEOUT_S = 15
URL = re.compile(r"API +(http://\S+)/v1")


class Gateway:
    """A gateway that runs. url: its address; pid: its process."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self.process = process
        self.pid = process.pid
        self.url = ""
        self.output = ""
        self._told = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._told.wait(START_TIMEOUT_S) or not self.url:
            raise RuntimeError(f"the gateway did not start:\n{self.output.strip()}")

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if found := URL.search(line):
                self.url = found[1]
                self._told.set()
        self._told.set()


@contextmanager
def run_gateway(triton: str, folder: Path, *words: str) -> Iterator[Gateway]:
    """Run a gateway in front of a tritonserver's gRPC address; its jobs are kept in `folder`."""
    command = [sys.executable, "-m", "builder.main", "gateway", "--triton", triton]
    places = ["--database", f"sqlite:///{folder / 'jobs.db'}", "--files", str(folder / "files")]
    process = subprocess.Popen(
        [*command, *places, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        # Ctrl-C reaches us first, and we end it when its requests are done
        start_new_session=True,
    )
    try:
        yield Gateway(process)
    finally:
        process.terminate()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
