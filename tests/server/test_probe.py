# SPDX-License-Identifier: Apache-2.0
"""`builder probe` over HTTP and gRPC: what it says of models that live, died, hang or are away."""

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import main as builder
from builder.tritonserver.server import Server, start_server
from tests.server.builder_serve import CONFIG as FOREIGN_CONFIG
from tests.server.builder_serve import WORKING, add_model

PROBED = """
import json, os, time
import numpy, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.stuck = os.path.join(args["model_repository"], "stuck")
        self.silent = os.path.join(args["model_repository"], "silent")
    def execute(self, requests):
        while os.path.exists(self.silent):
            time.sleep(0.05)
        for request in requests:
            request.get_response_sender().send(
                self.answer(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
    def answer(self, request):
        if json.loads(request.parameters() or "{}") != {"probe": True}:
            return refuse("not a probe: " + request.parameters(), "INVALID_ARG")
        if os.path.exists(self.stuck):
            return refuse("the model is stuck: 1 running", "UNAVAILABLE")
        text = json.dumps({"status": "ready", "waiting": 1, "running": 2, "since": None})
        info = pb_utils.Tensor("info", numpy.array([text.encode()], numpy.object_))
        return pb_utils.InferenceResponse([info])
def refuse(text, code):
    error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(error=error)
"""
CONFIG = """
name: "{name}" backend: "python" max_batch_size: 0
input [
  {{ name: "prompt" data_type: TYPE_STRING dims: [ -1 ] }},
  {{ name: "steps" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "scale" data_type: TYPE_FP64 dims: [ 1 ] }},
  {{ name: "flag" data_type: TYPE_BOOL dims: [ 1 ] }},
  {{ name: "left_out" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [
  {{ name: "y" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "info" data_type: TYPE_STRING dims: [ 1 ] }}
]
instance_group [ {{ count: {instances} kind: KIND_AUTO }} ]
"""
IMAGE = 'input [\n  {{ name: "image" data_type: TYPE_UINT8 dims: [ -1, -1, -1, 3 ] }},'
DECOUPLED = "model_transaction_policy {{ decoupled: true }}\n"
MODELS = {
    "plain": (CONFIG, 1),
    "picture": (CONFIG.replace("input [", IMAGE), 1),
    "stream": (CONFIG + DECOUPLED, 1),
    "pair": (CONFIG, 2),
}
READY = "ready, waiting 1, running 2"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probed") / "models"
    for name, (config, instances) in MODELS.items():
        add_model(folder, name, PROBED, instances, config)
    add_model(folder, "foreign", WORKING, 1, FOREIGN_CONFIG)
    add_model(folder, "away", PROBED, 1, CONFIG)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with start_server(repository, log=repository.parent / "log", exit_timeout_s=3) as running:
        yield running


@pytest.fixture
def load(server: Server) -> Iterator[Callable[..., None]]:
    loaded: list[str] = []

    def load(*names: str) -> None:
        for name in names:
            server.load(name)
            loaded.append(name)

    yield load
    for name in loaded:
        server.unload(name, 20)  # no probe keeps a model from ending


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def probe(protocol, capsys):
    """Run the command against a server; return its exit code, what it printed and its error."""

    def probe(server: Server, *words: str) -> tuple[int, str, str]:
        url = server.http_url if protocol == "http" else server.grpc_url
        code = builder.main(["probe", "--protocol", protocol, "--url", url, *words])
        told = capsys.readouterr()
        assert told.err.count("\n") == code
        return code, told.out, told.err

    return probe


def readiness(server: Server, name: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{server.http_url}/v2/models/{name}/ready") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("name", ["plain", "picture", "stream"])
def test_a_model_that_lives(probe, server, load, name):
    load(name)
    assert probe(server, name) == (0, f"{name}: {READY}\n", "")


def test_every_instance_is_asked(probe, server, load):
    load("pair")
    assert probe(server, "pair") == (0, f"pair: {READY} | {READY}\n", "")


def test_without_a_name_every_loaded_model_is_asked(probe, server, load):
    load("plain", "stream", "foreign")
    code, told, _ = probe(server)
    assert code == 0
    assert sorted(told.splitlines()) == [
        "foreign: ready, says Triton; no entry of builder add-model, so it was not asked",
        f"plain: {READY}",
        f"stream: {READY}",
    ]


@pytest.mark.parametrize("name", ["plain", "stream"])
def test_a_stuck_model_says_so(probe, server, load, repository, name):
    load("pair", name)
    (repository / name / "stuck").touch()
    try:
        reason = f"model '{name}' is ready, says Triton, but not well: the model is stuck: 1 runn"
        assert reason in probe(server, name)[2]
        code, told, error = probe(server)
    finally:
        (repository / name / "stuck").unlink()
    assert (code, told) == (1, f"pair: {READY} | {READY}\n")
    assert reason in error


@pytest.mark.parametrize("name", ["plain", "pair", "stream"])
def test_a_dead_process_is_seen_though_triton_says_ready(probe, repository, tmp_path, name):
    log = tmp_path / "log"
    # a server of its own: Triton does not let go of a dead model that was sent a request
    with start_server(repository, [name], log=log, exit_timeout_s=1) as server:
        victim = next(stub for stub in server.stubs() if stub.model == name)
        os.kill(victim.pid, signal.SIGKILL)
        code, _, error = probe(server, name)
        assert readiness(server, name) == 200
    assert code == 1
    assert f"model '{name}' is ready, says Triton, but not well: Stub process '{name}" in error
    assert "is not healthy" in error


@pytest.mark.parametrize("name", ["plain", "stream"])
def test_a_process_that_does_not_answer_is_a_timeout(probe, server, load, repository, name):
    load(name)
    (repository / name / "silent").touch()
    try:
        code, _, error = probe(server, name, "--timeout", "1")
    finally:
        (repository / name / "silent").unlink()
    assert code == 1
    assert error.startswith(f"error: model '{name}' is ready, says Triton, but: no answer from ")
    assert error.endswith(" within 1 s\n")


def test_a_model_that_is_not_loaded(probe, server, load):
    load("away", "plain")
    server.unload("away")
    assert probe(server, "away")[2] == "error: model 'away' is not ready: UNAVAILABLE\n"
    assert probe(server) == (0, f"plain: {READY}\n", "")
    error = probe(server, "plian")[2]
    assert "model 'plian' is not known to the server. Did you mean 'plain'?" in error


def test_a_server_without_models(probe, server):
    assert probe(server)[2] == "error: the server is live, but no model is loaded\n"


def test_a_server_that_is_not_there(probe, protocol, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{unused.getsockname()[1]}"
        assert builder.main(["probe", "plain", "--protocol", protocol, "--url", url]) == 1
    told = {"http": "HTTP", "grpc": "gRPC"}[protocol]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no tritonserver answers over {told} at {url}: ")


def test_a_port_that_never_answers(protocol, capsys):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["probe", "plain", "--protocol", protocol, "--url", url, "--timeout", "0.5"]
        started = time.monotonic()
        assert builder.main(words) == 1
        assert time.monotonic() - started < 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" within 0.5 s")


def test_a_port_of_the_other_protocol(server, protocol, capsys):
    url = server.grpc_url if protocol == "http" else server.http_url
    assert builder.main(["probe", "plain", "--protocol", protocol, "--url", url]) == 1
    assert "no tritonserver answers over" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["https://localhost:8000", "grpc://localhost", "ftp://x"])
def test_an_address_that_does_not_fit(url, capsys):
    assert builder.main(["probe", "plain", "--protocol", "http", "--url", url]) == 1
    assert "write HOST:PORT, without TLS" in capsys.readouterr().err
