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

CRASH = re.compile("failed to stop|Exit timeout|signal \\(?(6|11)|Segmentation|Aborted|core dump")


class Callers:
    """Requests from threads, each on a connection that stays open when its answer is there."""

    def __init__(self, protocol: str, serving: Serving) -> None:
        self._serving = serving
        self._ask = {"http": self._over_http, "grpc": self._over_grpc}[protocol]
        self._threads = ThreadPoolExecutor(8)
        self._open: list[object] = []

    def send(self, name: str, nth: int = 1) -> "Future[bool]":
        """Send a request; wait until the model has it. Its result: whether it was answered."""
        sent = self._threads.submit(self._ask, name)
        mark = f'model="{name}",version="1"}} {nth}'
        wait_until(lambda: mark in metrics(self._serving, "nv_inference_exec_count"))
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


@pytest.fixture(params=["http", "grpc"])
def call(request: pytest.FixtureRequest) -> Iterator[Callable[[Serving], Callers]]:
    made: list[Callers] = []

    def make(serving: Serving) -> Callers:
        made.append(Callers(request.param, serving))
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


def assert_serves(serving: Serving, *names: str) -> None:
    for name in names:
        assert serving.ask(f"v2/models/{name}/infer", {"inputs": []})[0] == 200


def log_of(serving: Serving) -> str:
    return Path(re.search(r"server log: (\S+)", serving.output)[1]).read_text()


def test_lost_requests_get_an_error_and_those_of_other_models_an_answer(serve, repository, call):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    callers = call(serving)
    lost = [callers.send("dying", nth) for nth in (1, 2)]
    kept = callers.send("other")
    kill_a_stub(serving, "dying")
    died = time.monotonic()
    serving.wait_for("warning: requests that model 'dying' was running are lost")
    time.sleep(1)
    assert not kept.done()
    let_go(repository, "other")
    assert kept.result(TIMEOUT_S) is True
    assert [future.result(TIMEOUT_S) for future in lost] == [False, False]
    assert time.monotonic() - died < 30
    let_go(repository, "dying")
    assert_serves(serving, "dying", "other")
    assert "ready again: dying\n" in serving.output
    serving.process.terminate()
    assert serving.wait() == 0
    wait_until(lambda: not group_exists(serving.server_pid))


def test_other_instances_of_a_dead_model_answer_what_they_run(serve, tmp_path, call):
    add_model(tmp_path / "models", "pair", HOLDING, instances=2)
    serving = serve("--repository", tmp_path / "models", "--exit-timeout", "16")
    serving.wait_until_ready()
    callers = call(serving)
    sent = [callers.send("pair", nth) for nth in (1, 2)]
    kill_a_stub(serving, "pair")
    serving.wait_for("the Python process of model 'pair' died")
    time.sleep(12)  # longer than a model without living instances gets
    assert not any(future.done() for future in sent)
    let_go(tmp_path / "models", "pair")
    assert sorted(future.result(TIMEOUT_S) for future in sent) == [False, True]
    serving.wait_for("ready again: pair\n")


def test_other_instances_without_work_are_not_waited_for(serve, tmp_path, call):
    add_model(tmp_path / "models", "pair", COUNTING, instances=2)
    serving = serve("--repository", tmp_path / "models")
    serving.wait_until_ready()
    lost = call(serving).send("pair")
    found = re.search(r'instance="(\w+)".*\} 1', metrics(serving, "triton_diffusers_running"))
    (victim,) = (stub for stub in serving.stubs() if found[1] in stub.arguments)
    os.kill(victim.pid, signal.SIGKILL)
    assert lost.result(30) is False
    serving.wait_for("ready again: pair\n")


def test_a_signal_lets_running_requests_finish(serve, repository, call):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    callers = call(serving)
    running = [callers.send(name) for name in ("dying", "other")]
    serving.process.send_signal(signal.SIGTERM)
    serving.wait_for("stopping: running requests have 300 s to finish")
    time.sleep(2)
    for name, future in zip(("dying", "other"), running, strict=True):
        assert not future.done()
        let_go(repository, name)
        assert future.result(TIMEOUT_S) is True
    answered = time.monotonic()
    assert serving.wait() == 0  # the callers' connections are open still
    assert time.monotonic() - answered < 15
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
    assert running.result(15) is False
    assert serving.wait() == 0
    assert "warning: requests of dying were not finished\nstopped\n" in serving.output
    assert not CRASH.search(log_of(serving))
    wait_until(lambda: not group_exists(serving.server_pid))
