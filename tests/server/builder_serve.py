# SPDX-License-Identifier: Apache-2.0
"""`builder serve` as a process of its own, and small models without torch to serve with it."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from builder.tritonserver import stubs
from tests.waiting import wait_for as wait_until  # noqa: F401 - for those who use this
from triton_diffusers.config import admin_key

TIMEOUT_S = 60
WORKING = """
import numpy, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        one = lambda: pb_utils.Tensor("y", numpy.zeros(1, numpy.int64))
        return [pb_utils.InferenceResponse([one()]) for _ in requests]
"""
HOLDING = """
import os, threading, time
import numpy, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.go = os.path.join(args["model_repository"], "go")
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=[request.get_response_sender()]).start()
    def answer(self, sender):
        while not os.path.exists(self.go):
            time.sleep(0.05)
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("y", numpy.zeros(1, numpy.int64))])
        sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Answers when a file `go` lies in its entry: see `let_go`."""
COUNTING = HOLDING.replace(
    "    def execute",
    """        gauge = pb_utils.MetricFamily.GAUGE
        family = pb_utils.MetricFamily("triton_diffusers_running", "", gauge)
        labels = {"model": "pair", "model_instance": args["model_instance_name"]}
        self.running = (family, family.Metric(labels))
        self.running[1].set(0)
    def execute""",
).replace("        for request", "        self.running[1].increment(1)\n        for request")
"""The same, and tells in the metrics what it runs, as the runtime does."""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("model 'x' is missing\\nsecond line")
    def execute(self, requests):
        return []
"""
CONFIG = """
name: "{name}" backend: "python" max_batch_size: 0
output [ {{ name: "y" data_type: TYPE_INT64 dims: [ 1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_AUTO }} ]
"""


def add_model(
    repository: Path, name: str, model: str = WORKING, instances: int = 1, config: str = CONFIG
) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(model)
    text = config.format(name=name, instances=instances)
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in ("first", "second"):
        add_model(folder, name)
    return folder


@pytest.fixture(autouse=True)
def _logs_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the logs of these servers with the other files of the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


class Serving:
    """A running `builder serve`; its output is read line by line."""

    def __init__(self, *words: str) -> None:
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        command = [sys.executable, "-m", "builder.main", "serve", *ports, *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches, and return the match."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line matches {pattern!r} in:\n{self.output}")
            self.output += line
            if found := re.search(pattern, line):
                return found

    def wait_until_ready(self) -> None:
        self.http = self.wait_for(r"HTTP +http://(\S+)")[1]
        self.grpc = self.wait_for(r"gRPC +(\S+)")[1]
        self.metrics = self.wait_for(r"metrics +http://(\S+)/metrics")[1]
        self.find_server()

    def find_server(self) -> None:
        """Look for the server's process, which is another one after it was started again."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        (self.server_pid,) = [int(pid) for file in children for pid in file.read_text().split()]

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)
        while (line := self._lines.get(timeout=1)) is not None:
            self.output += line
        return code

    def stubs(self) -> list[stubs.Stub]:
        return stubs.find(self.server_pid)

    def administer(self, path: str, body: Any = MappingProxyType({})) -> tuple[int, str]:
        """Send an administrative call with the key that the server left for its own user."""
        return self.ask(path, dict(body), admin_key.headers(self.http))

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, str]:
        """Send one HTTP request; a body makes it a POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}/{path}", data, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*words: str | Path) -> Serving:
        started.append(Serving(*map(str, words)))
        return started[-1]

    yield start
    for serving in started:
        serving.process.terminate()
        try:
            serving.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            serving.process.kill()
        if hasattr(serving, "server_pid") and group_exists(serving.server_pid):
            os.killpg(serving.server_pid, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Tell whether a process of the group lives; one that only waits to be reaped does not."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def let_go(repository: Path, name: str) -> None:
    (repository / name / "go").touch()


def infer(serving: Serving, name: str) -> int:
    return serving.ask(f"v2/models/{name}/infer", {"inputs": []})[0]


def metrics(serving: Serving, name: str) -> str:
    """Return the lines of one metric."""
    with urllib.request.urlopen(f"http://{serving.metrics}/metrics", timeout=TIMEOUT_S) as page:
        return "\n".join(x for x in page.read().decode().splitlines() if x.startswith(name))
