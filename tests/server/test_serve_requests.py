# SPDX-License-Identifier: Apache-2.0
"""`builder serve` and the requests that run when a process dies or the server is told to end."""

import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc

from tests.server.builder_serve import (
    COUNTING,
    HOLDING,
    TIMEOUT_S,
    Serving,
    add_model,
    group_exists,
    let_go,
    metrics,
    wait_until,
)
from tests.server.builder_serve import _logs_in_tmp_path as _logs_in_tmp_path
from tests.server.builder_serve import serve as serve

PROTOCOLS = ("http", "grpc")
CRASH = re.compile("failed to stop|Exit timeout|signal \\(?(6|11)|Segmentation|Aborted|core dump")


class Callers:
    """Requests from threads, each on a connection that stays open when its answer is there."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._threads = ThreadPoolExecutor(8)
        self._open: list[object] = []

    def send(self, name: str, *protocols: str) -> "list[Future[bool]]":
        """Send requests one by one, each when the model has the one before: which are answered."""
        sent = []
        for nth, protocol in enumerate(protocols or PROTOCOLS, 1):
            ask = self._over_http if protocol == "http" else self._over_grpc
            sent.append(self._threads.submit(ask, name))
            mark = f'model="{name}",version="1"}} {nth}'
            wait_until(lambda mark=mark: mark in metrics(self._serving, "nv_inference_exec_count"))
        return sent

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._threads.shutdown()

    def _over_http(self, name: str) -> bool:
        connection = http.client.HTTPConnection(self._serving.http, timeout=TIMEOUT_S)
        self._open.append(connection)
        try:
            connection.request("POST", f"/v2/models/{name}/infer", '{"inputs": []}')
            response = connection.getresponse()
        except (ConnectionError, http.client.HTTPException):
            return False
        return response.status == 200 and b'"y"' in response.read()

    def _over_grpc(self, name: str) -> bool:
        client = triton_grpc.InferenceServerClient(self._serving.grpc)
        self._open.append(client)
        try:
            result = client.infer(name, [], client_timeout=TIMEOUT_S)
        except triton_grpc.InferenceServerException as error:
            if error.status() != "StatusCode.UNAVAILABLE":
                raise
            return False
        return result.get_response().model_name == name


@pytest.fixture
def call() -> Iterator[Callable[[Serving], Callers]]:
    made: list[Callers] = []

    def make(serving: Serving) -> Callers:
        made.append(Callers(serving))
        return made[-1]

    yield make
    for callers in made:
        callers.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("dying", "other"):
        add_model(tmp_path / "models", name, HOLDING)
    return tmp_path / "models"


def kill_a_stub(serving: Serving, name: str) -> None:
    victim = next(stub for stub in serving.stubs() if stub.model == name)
    os.kill(victim.pid, signal.SIGKILL)


def results(sent: "list[Future[bool]]", timeout_s: float = TIMEOUT_S) -> list[bool]:
    return [future.result(timeout_s) for future in sent]


def assert_serves(serving: Serving, *names: str) -> None:
    for name in names:
        assert serving.ask(f"v2/models/{name}/infer", {"inputs": []})[0] == 200


def log_of(serving: Serving) -> str:
    return Path(re.search(r"server log: (\S+)", serving.output)[1]).read_text()


def test_lost_requests_get_an_error_and_those_of_other_models_an_answer(serve, repository, call):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    callers = call(serving)
    lost = callers.send("dying")
    kept = callers.send("other")
    kill_a_stub(serving, "dying")
    serving.wait_for("warning: requests that model 'dying' was running are lost")
    time.sleep(1)
    assert not any(future.done() for future in kept)
    let_go(repository, "other")
    assert results(kept) == [True, True]
    assert results(lost, 30) == [False, False]
    serving.wait_for("ready again: dying, other\n")
    let_go(repository, "dying")
    assert_serves(serving, "dying", "other")  # on the same ports
    old_pid = serving.server_pid
    serving.find_server()
    assert not group_exists(old_pid)
    serving.process.terminate()
    assert serving.wait() == 0
    wait_until(lambda: not group_exists(serving.server_pid))


def test_other_instances_of_a_dead_model_answer_what_they_run(serve, tmp_path, call):
    add_model(tmp_path / "models", "pair", HOLDING, instances=2)
    serving = serve("--repository", tmp_path / "models", "--exit-timeout", "16")
    serving.wait_until_ready()
    sent = call(serving).send("pair", "http", "grpc", "grpc", "http")  # two for each instance
    kill_a_stub(serving, "pair")
    serving.wait_for("the Python process of model 'pair' died")
    time.sleep(12)  # longer than a model without living instances gets
    assert not any(future.done() for future in sent)
    let_go(tmp_path / "models", "pair")
    assert sorted(results(sent)) == [False, False, True, True]
    serving.wait_for("ready again: pair\n")


def test_other_instances_without_work_are_not_waited_for(serve, tmp_path, call):
    add_model(tmp_path / "models", "pair", COUNTING, instances=2)
    add_model(tmp_path / "models", "two", COUNTING.replace('"pair"', '"two"'), instances=2)
    serving = serve("--repository", tmp_path / "models")
    serving.wait_until_ready()
    callers = call(serving)
    lost = callers.send("pair", "http") + callers.send("two", "grpc")
    found = re.findall(r'instance="(\w+)".*\} 1', metrics(serving, "triton_diffusers_running"))
    victims = [s for s in serving.stubs() if any(name in s.arguments for name in found)]
    assert {stub.model for stub in victims} == {"pair", "two"}
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    assert results(lost, 30) == [False, False]
    serving.wait_for("ready again: pair, two\n")


def test_a_signal_lets_running_requests_finish(serve, repository, call):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    callers = call(serving)
    running = [callers.send(name) for name in ("dying", "other")]
    serving.process.send_signal(signal.SIGTERM)
    serving.wait_for("stopping: running requests have 300 s to finish")
    time.sleep(2)
    for name, futures in zip(("dying", "other"), running, strict=True):
        assert not any(future.done() for future in futures)
        let_go(repository, name)
        assert results(futures) == [True, True]
    assert serving.wait() == 0  # the callers' connections are open still
    assert serving.output.endswith("\nstopped\n")
    assert "error" not in serving.output
    assert "warning" not in serving.output
    assert not CRASH.search(log_of(serving))
    wait_until(lambda: not group_exists(serving.server_pid))


def test_the_exit_timeout_ends_requests_that_do_not_finish(serve, repository, call):
    serving = serve("--repository", repository, "--exit-timeout", "2")
    serving.wait_until_ready()
    running = call(serving).send("dying")
    serving.process.send_signal(signal.SIGTERM)
    serving.wait_for("stopping: running requests have 2 s to finish")
    assert results(running, 15) == [False, False]
    assert serving.wait() == 0
    assert "warning: requests of dying were not finished\nstopped\n" in serving.output
    assert not CRASH.search(log_of(serving))
    wait_until(lambda: not group_exists(serving.server_pid))
