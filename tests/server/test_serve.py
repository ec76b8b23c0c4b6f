# SPDX-License-Identifier: Apache-2.0
"""`builder serve` as an operator runs it: a process of its own, real signals, real stubs."""

import http.client
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from builder import main as builder
from tests.server.builder_serve import (
    BROKEN,
    TIMEOUT_S,
    add_model,
    group_exists,
    infer,
    metrics,
    wait_until,
)
from tests.server.builder_serve import _logs_in_tmp_path as _logs_in_tmp_path
from tests.server.builder_serve import repository as repository
from tests.server.builder_serve import serve as serve


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
    serving.process.send_signal(signal.SIGTERM)
    assert serving.wait() == 0  # long before the 300 s that requests have
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


def test_ready_means_ready_and_unloading_and_reloading_through_the_api_is_no_death(
    serve, repository
):
    serving = serve("--repository", repository)
    serving.wait_for(r"loaded first in \d+\.\d s")
    serving.wait_for(r"ready: first, second ")
    serving.wait_until_ready()
    assert infer(serving, "first") == infer(serving, "second") == 200
    assert 'model="first"' in metrics(serving, "nv_inference")
    host, port = serving.grpc.split(":")
    assert host == "127.0.0.1"
    socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
    path = "v2/repository/models"
    assert serving.ask(f"{path}/first/unload", {})[0] == 403
    assert serving.administer(f"{path}/first/unload")[0] == 200
    wait_until(lambda: {stub.model for stub in serving.stubs()} == {"second"})
    assert serving.administer(f"{path}/second/load")[0] == 200
    time.sleep(3)
    serving.process.terminate()
    assert serving.wait() == 0
    assert "died" not in serving.output


def test_a_model_that_fails_is_named_and_the_others_go_on(serve, repository):
    add_model(repository, "broken", BROKEN)
    (repository / "first" / "config.pbtxt").write_text("nonsense: 1")
    serving = serve("--repository", repository)
    reason = "error: model 'broken' did not load: RuntimeError: model 'x' is missing second line\n"
    serving.wait_for("ready: second ")
    assert reason in serving.output
    assert re.search(
        "error: model 'first' did not load: .*builder check first says why", serving.output
    )


def test_no_model_left_is_a_failure(serve, tmp_path):
    add_model(tmp_path / "models", "broken", BROKEN)
    serving = serve("broken", "--repository", tmp_path / "models")
    assert serving.wait() == 1
    assert serving.output.count("error: ") == 2
    log = Path(re.search(r"server log: (\S+)", serving.output)[1])
    assert "second line" in log.read_text()
    assert not users_of(log)


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


def test_options_behind_dashes_reach_the_server_and_verbose_shows_its_log(serve, repository):
    serving = serve("first", "-v", "--repository", repository, "--", "--id=my-server")
    serving.wait_for("Started HTTPService")
    serving.wait_until_ready()
    assert "server log:" not in serving.output
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
