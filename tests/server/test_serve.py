# SPDX-License-Identifier: Apache-2.0
"""`builder serve` as an operator runs it: a process of its own, real signals, real stubs."""

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import main as builder
from builder import stubs

TIMEOUT_S = 60
WORKING = """
import numpy, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        one = lambda: pb_utils.Tensor("y", numpy.zeros(1, numpy.int64))
        return [pb_utils.InferenceResponse([one()]) for _ in requests]
"""
WAITING = """
class TritonPythonModel:
    def execute(self, requests):
        # answered later, through the response senders, as the runtime does
        self.senders = [request.get_response_sender() for request in requests]
"""
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


def add_model(repository: Path, name: str, model: str = WORKING, instances: int = 1) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(model)
    text = CONFIG.format(name=name, instances=instances)
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

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Send one HTTP request; a body makes it a POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}/{path}", data=data)
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


def infer(serving: Serving, name: str) -> int:
    return serving.ask(f"v2/models/{name}/infer", {"inputs": []})[0]


def metrics(serving: Serving, name: str) -> str:
    """Return the lines of one metric."""
    with urllib.request.urlopen(f"http://{serving.metrics}/metrics", timeout=TIMEOUT_S) as page:
        return "\n".join(x for x in page.read().decode().splitlines() if x.startswith(name))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ready_means_ready_on_every_port(serve, repository):
    serving = serve("--repository", repository)
    serving.wait_for(r"loaded first in \d+\.\d s")
    serving.wait_for(r"ready: first, second ")
    serving.wait_until_ready()
    assert infer(serving, "first") == infer(serving, "second") == 200
    assert 'model="first"' in metrics(serving, "nv_inference")
    host, port = serving.grpc.split(":")
    assert host == "127.0.0.1"
    socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 2])
def test_signals_leave_nothing_behind(serve, repository, number, times):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    regions = [stub.region for stub in serving.stubs()]
    assert len(regions) == 2
    for _ in range(times):  # timeout(1) sends a signal twice
        serving.process.send_signal(number)
    assert serving.wait() == 0
    assert serving.output.endswith("stopped\n")
    wait_until(lambda: not group_exists(serving.server_pid))
    assert not [region for region in regions if Path("/dev/shm", region).exists()]


def test_a_signal_while_starting_leaves_nothing_behind(serve, repository):
    serving = serve("--repository", repository)
    log = Path(serving.wait_for(r"server log: (\S+)")[1])
    time.sleep(0.3)
    serving.process.send_signal(signal.SIGTERM)
    assert serving.wait() == 0
    time.sleep(0.5)
    assert not users_of(log)


def test_an_open_connection_does_not_hold_a_second_signal(serve, repository):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    open_connection = http.client.HTTPConnection(serving.http, timeout=TIMEOUT_S)
    open_connection.request("GET", "/v2")
    open_connection.getresponse().read()
    serving.process.send_signal(signal.SIGTERM)
    serving.wait_for("stopping")
    time.sleep(1.5)
    started = time.monotonic()
    serving.process.send_signal(signal.SIGTERM)
    assert serving.wait() == 0
    assert time.monotonic() - started < 10
    wait_until(lambda: not group_exists(serving.server_pid))
    open_connection.close()


def test_a_dead_stub_is_noticed_and_its_model_reloaded(serve, repository):
    add_model(repository, "pair", instances=2)
    serving = serve("pair", "first", "--repository", repository)
    serving.wait_until_ready()
    for name in ("first", "pair"):
        others = [stub for stub in serving.stubs() if stub.model != name]
        victim = next(stub for stub in serving.stubs() if stub.model == name)
        os.kill(victim.pid, signal.SIGKILL)
        serving.wait_for(f"warning: the Python process of model '{name}' died.*")
        serving.wait_for(f"loaded {name} in")
        assert infer(serving, name) == 200
        assert set(others) < set(serving.stubs())
    serving.process.terminate()
    assert serving.wait() == 0


def test_a_stub_that_dies_with_requests_in_flight_is_replaced(serve, repository):
    add_model(repository, "waiting", WAITING)
    serving = serve("waiting", "--repository", repository)
    serving.wait_until_ready()
    request = http.client.HTTPConnection(serving.http, timeout=TIMEOUT_S)
    request.request("POST", "/v2/models/waiting/infer", '{"inputs": []}')
    wait_until(lambda: 'model="waiting",version="1"} 1' in metrics(serving, "nv_inference_exec"))
    (victim,) = serving.stubs()
    os.kill(victim.pid, signal.SIGKILL)
    serving.wait_for("requests that model 'waiting' was running are lost")
    serving.wait_for("loaded waiting in")
    (stub,) = serving.stubs()
    assert stub != victim
    for pause_s in (1.5, 0):  # the lost request would hold the first signal for half a minute
        serving.process.terminate()
        time.sleep(pause_s)
    assert serving.wait() == 0
    request.close()


def test_unloading_and_reloading_through_the_api_is_no_death(serve, repository):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    assert serving.ask("v2/repository/models/first/unload", {})[0] == 200
    wait_until(lambda: {stub.model for stub in serving.stubs()} == {"second"})
    assert serving.ask("v2/repository/models/second/load", {})[0] == 200
    time.sleep(3)
    serving.process.terminate()
    assert serving.wait() == 0
    assert "died" not in serving.output


def test_a_model_that_fails_is_named_and_the_others_go_on(serve, repository):
    add_model(repository, "broken", BROKEN)
    serving = serve("--repository", repository)
    reason = "error: model 'broken' did not load: RuntimeError: model 'x' is missing second line\n"
    assert serving.wait_for("error: .*\n")[0] == reason
    serving.wait_for(r"ready: first, second ")


def test_a_config_that_triton_cannot_read_points_to_check(serve, repository):
    (repository / "first" / "config.pbtxt").write_text("nonsense: 1")
    serving = serve("--repository", repository)
    serving.wait_for("error: model 'first' did not load: .*builder check first says why")
    serving.wait_for("ready: second ")


def test_no_model_left_is_a_failure(serve, tmp_path):
    add_model(tmp_path / "models", "broken", BROKEN)
    serving = serve("broken", "--repository", tmp_path / "models")
    assert serving.wait() == 1
    assert serving.output.count("error: ") == 2
    log = Path(re.search(r"server log: (\S+)", serving.output)[1])
    assert "second line" in log.read_text()
    assert not users_of(log)


def test_a_server_that_dies_is_an_error_with_its_log(serve, repository):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    os.kill(serving.server_pid, signal.SIGKILL)
    assert serving.wait() == 1
    assert "error: tritonserver ended by itself with exit code -9" in serving.output
    assert "  | " in serving.output
    wait_until(lambda: not group_exists(serving.server_pid))


@pytest.mark.parametrize("kind", ["http", "grpc", "metrics"])
def test_a_busy_port_is_one_line(kind, repository, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        ports = {"http": 0, "grpc": 0, "metrics": 0} | {kind: taken.getsockname()[1]}
        words = [word for k, port in ports.items() for word in (f"--{k}-port", str(port))]
        assert builder.main(["serve", "--repository", str(repository), *words]) == 1
    assert f"choose another with --{kind}-port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "model 'nothing' is not known"),
        (["firts"], "Did you mean 'first'?"),
        (["--", "--http-port=1"], "--http-port is set by builder serve"),
        (["--http-port", "0", "--", "--nonsense=1"], "unrecognized option '--nonsense=1'"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
    ],
)
def test_refusals_are_one_line(words, message, repository, capsys):
    ports = [] if "--http-port" in words[:1] else ["--http-port", "0"]
    command = ["serve", "--repository", str(repository), "--grpc-port", "0", *ports]
    assert builder.main([*command, "--metrics-port", "0", *words]) == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert message in line


def test_an_empty_repository_says_what_to_do(tmp_path, capsys):
    assert builder.main(["serve", "--repository", str(tmp_path)]) == 1
    assert "builder add-model" in capsys.readouterr().err


def test_verbose_shows_the_servers_log(serve, repository):
    serving = serve("first", "-v", "--repository", repository)
    serving.wait_for("Started HTTPService")
    serving.wait_until_ready()
    assert "server log:" not in serving.output


def test_options_behind_dashes_reach_the_server(serve, repository):
    serving = serve("first", "-v", "--repository", repository, "--", "--id=my-server")
    serving.wait_until_ready()
    assert json.loads(serving.ask("v2")[1])["name"] == "my-server"


def users_of(log: Path) -> list[int]:
    """Return the processes that have the log open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == log:
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return found
