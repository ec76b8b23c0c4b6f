# SPDX-License-Identifier: Apache-2.0
"""`builder gateway` as an operator runs it: a process of its own, real signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.calling import LONG, check_error, generate, triton_metric, wait_for
from tests.server.gateway.command import BUILDER, TIMEOUT_S, start_gateway


@pytest.fixture(autouse=True)
def _no_jobs_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def refused(*words: str, **variables: str) -> str:
    """Run the command, which refuses in one line; return that."""
    prefix = "TRITON_DIFFUSERS_GATEWAY_"
    env = os.environ | {prefix + name: value for name, value in variables.items()}
    done = subprocess.run(
        [*BUILDER, *words], capture_output=True, text=True, env=env, timeout=TIMEOUT_S
    )
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_at_a_signal(
    demo_server: Server, tmp_path: Path, number: int
) -> None:
    with start_gateway(tmp_path, "--triton", demo_server.grpc_url) as gateway:
        url = gateway.url
        page = gateway.wait_for(r"page +(http://\S+)")[1]
        gateway.wait_for(f"{demo_server.grpc_url} serves: .*demo")
        answer = httpx.get(page, timeout=TIMEOUT_S)
        assert answer.status_code == 200
        assert "server" not in answer.headers
        assert generate(url, model="demo").status_code == 200
        assert gateway.stop(number, 10) == 0
        assert gateway.output.endswith("stopped\n")
        assert "Traceback" not in gateway.output


def test_it_starts_before_tritonserver_does(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
    with start_gateway(tmp_path, "--triton", nobody) as gateway:
        check_error(httpx.get(f"{gateway.url}/health", timeout=TIMEOUT_S), 502)
        gateway.wait_for(f"{nobody} does not answer")


def test_running_requests_are_finished_at_the_end(demo_server: Server, tmp_path: Path) -> None:
    with start_gateway(tmp_path, "--triton", demo_server.grpc_url) as gateway:
        url = gateway.url
        generate(url)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, url, num_inference_steps=600)
            wait_for(lambda: running(demo_server))
            assert gateway.stop() == 0
            assert answer.result(TIMEOUT_S).status_code == 200


def test_requests_that_take_too_long_at_the_end_are_cancelled(
    demo_server: Server, tmp_path: Path
) -> None:
    words = ("--triton", demo_server.grpc_url, "--exit-timeout", "1")
    with start_gateway(tmp_path, *words) as gateway:
        url = gateway.url
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, url, **LONG)
            wait_for(lambda: running(demo_server))
            assert gateway.stop() == 0
            error = check_error(answer.result(TIMEOUT_S), 503, "overloaded")
        assert "being stopped" in error["message"]
        assert "retry-after" in answer.result().headers
        assert "Traceback" not in gateway.output
        wait_for(lambda: not running(demo_server), 5)


def running(server: Server) -> bool:
    return triton_metric(server, "triton_diffusers_running", model="demo") > 0


def test_a_busy_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = str(bound.getsockname()[1])
        told = refused("--port", port)
    assert port in told
    assert "--port" in told


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (("--max-requests", "0"), {}, "--max-requests: Input should be greater than 0, got '0'"),
        (("--timeout-s", "soon"), {}, "--timeout-s: "),
        ((), {"TIMEOUT_S": "soon"}, "TRITON_DIFFUSERS_GATEWAY_TIMEOUT_S: "),
        (("--triton", ","), {}, "--triton: "),
        (("--max-body-bytes-in-all", "1000"), {}, "max_body_bytes_in_all is 1000"),
        (("--triton", "http://localhost:8000"), {}, "write 'localhost:8001'"),
        (("--api-keys", "secret-key"), {}, "unknown option '--api-keys'"),
        (("--api-keys-file", "/nowhere"), {}, "'/nowhere' cannot be read"),
        (("--database", "postgresql://me:secret-key@host/jobs"), {}, "_DATABASE"),
        (("--max-request", "3"), {}, "Did you mean '--max-requests'?"),
        (("--no-page", "true"), {}, "takes no value"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    words: tuple[str, ...], variables: dict[str, str], told: str
) -> None:
    text = refused("--port", "0", *words, **variables)
    assert told in text
    assert "secret-key" not in text


def test_a_variable_that_is_no_setting_is_told_but_not_those_of_kubernetes(
    tmp_path: Path,
) -> None:
    with start_gateway(tmp_path, MAX_REQUEST="3", SERVICE_HOST="10.0.0.1", PORT_8080_TCP="x") as g:
        assert g.url
        assert "TRITON_DIFFUSERS_GATEWAY_MAX_REQUEST is no setting" in g.output
        assert "Did you mean 'TRITON_DIFFUSERS_GATEWAY_MAX_REQUESTS'?" in g.output
        assert "SERVICE_HOST" not in g.output
        assert "PORT_8080" not in g.output


def test_secrets_come_from_the_environment_and_are_shown_nowhere(
    demo_server: Server, tmp_path: Path
) -> None:
    words = ("--triton", demo_server.grpc_url, "--verbose")
    with start_gateway(tmp_path, *words, API_KEYS="secret-key,other") as gateway:
        url = f"{gateway.url}/v1/models"
        assert httpx.get(url, timeout=TIMEOUT_S).status_code == 401
        headers = {"Authorization": "Bearer secret-key"}
        assert httpx.get(url, headers=headers, timeout=TIMEOUT_S).status_code == 200
        params = {"api_key": "query-key"}  # where no key belongs, but may be put
        assert httpx.get(url, params=params, timeout=TIMEOUT_S).status_code == 401
        gateway.wait_for(r"GET /v1/models HTTP/1.1\" 200")  # --verbose
        gateway.wait_for(r"GET /v1/models HTTP/1.1\" 401")
        assert "query-key" not in gateway.output
        line = Path(f"/proc/{gateway.process.pid}/cmdline").read_text()
        assert "secret-key" not in gateway.output + line


def test_a_gateway_that_everybody_can_reach_without_a_key_warns(tmp_path: Path) -> None:
    with start_gateway(tmp_path, "--host", "0.0.0.0") as gateway:
        assert gateway.url
        assert "no keys are set" in gateway.output
    with start_gateway(tmp_path, "--host", "0.0.0.0", API_KEYS="k") as gateway:
        assert gateway.url
        assert "no keys are set" not in gateway.output


def test_uvicorn_can_run_it_too(demo_server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    prefix = "TRITON_DIFFUSERS_GATEWAY_"
    env = os.environ | {
        f"{prefix}TRITON": demo_server.grpc_url,
        f"{prefix}DATABASE": f"sqlite:///{tmp_path}/jobs.db",
        f"{prefix}FILES": str(tmp_path),
    }
    words = ("uvicorn", "--factory", "triton_diffusers.gateway:create_app", "--port", str(port))
    command = [BUILDER[0], "-m", *words]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(url), 30)
        assert generate(url).status_code == 200
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=TIMEOUT_S).status_code == 200
    except httpx.TransportError:
        return False
