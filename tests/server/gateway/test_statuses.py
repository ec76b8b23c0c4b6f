# SPDX-License-Identifier: Apache-2.0
"""Every status that is no success, from a real server. 401: test_auth, 413 and 429: test_limits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.tritonserver.server import Server
from tests import tiny
from tests.server.entries import SMALL, add_entry
from tests.server.gateway.calling import (
    LONG,
    PATH,
    QUICK,
    TIMEOUT_S,
    check_error,
    gateway_metric,
    generate,
    leave,
    run,
    triton_metric,
    wait_for,
)
from tests.server.gateway.servers import serve_entries
from tests.server.gateway.serving import serve_gateway

FAULTY = Path(__file__).parents[1] / "faulty.py"
DEMO_LOAD_S = 60.0


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own: it is stopped, and its models have short queues."""
    folder = tmp_path_factory.mktemp("statuses")
    faulty = ("--custom-pipeline", str(FAULTY), "--diffusers-call-kwargs", json.dumps(SMALL))
    add_entry(folder / "models", "faulty", tiny.save("stable-diffusion", folder), *faulty)
    options = {"queued": ("--max-queue", "1"), "streams": ("--decoupled",)}
    with serve_entries(folder, options) as server:
        yield server


@pytest.fixture(scope="module")
def own_gateway(own_server: Server) -> Iterator[str]:
    with serve_gateway(own_server.grpc_url) as url:
        yield url


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "required"),
        (b"{", "no JSON"),
        (b"[]", "dictionary"),
        (b'"text"', "dictionary"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b"{}", "prompt"),
        (b'{"prompt": 1}', "prompt"),
        (b'{"prompt": "a", "seed": "x"}', "seed"),
        (b'{"prompt": "a", "seed": 1e400}', "seed"),
    ],
)
def test_415_a_body_that_cannot_be_read(gateway: str, content: bytes, words: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = httpx.post(gateway + PATH, content=content, headers=headers, timeout=TIMEOUT_S)
    error = check_error(response, 400)
    assert error["type"] == "invalid_request_error"
    assert words.lower() in error["message"].lower()


HALF = "\ud800"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": HALF}, "model"),
        ({HALF: 1}, HALF),
        ({"user": HALF}, "user"),
        ({"generator_device": HALF}, "generator_device"),
        ({"extra_body": {HALF: 1}}, "extra_body"),
        ({"extra_args": json.dumps({HALF: 1})}, "extra_args"),
        ({"extra": json.dumps({HALF: 1})}, HALF),
        ({"diffusers_kwargs": {"flow_shift": [{"a": [HALF]}]}}, "diffusers_kwargs"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("path", [PATH, "/v1/images/edits", "/v1/chat/completions"])
def test_400_or_404_for_half_a_surrogate_pair(
    gateway: str, path: str, body: dict[str, Any], param: str
) -> None:
    sent = json.dumps({"messages": [{"role": "user", "content": "a"}]} | QUICK | body)
    headers = {"Content-Type": "application/json"}
    response = httpx.post(gateway + path, content=sent, headers=headers, timeout=TIMEOUT_S)
    check_error(response, response.status_code)
    assert response.status_code == (404 if path.endswith("edits") and param == "model" else 400)


def test_400_a_body_of_another_type_is_told_which_it_must_be(gateway: str) -> None:
    response = httpx.post(gateway + PATH, data={"prompt": "a"}, timeout=TIMEOUT_S)  # as curl -d
    error = check_error(response, 415, "unsupported_media_type")
    assert "send 'Content-Type: application/json'" in error["message"]


def test_404_and_405_are_error_objects(gateway: str) -> None:
    error = check_error(generate(gateway, model="demmo"), 404, "model_not_found")
    assert "Did you mean 'demo'?" in error["message"]
    check_error(httpx.get(f"{gateway}/v1/models/nope", timeout=TIMEOUT_S), 404, "model_not_found")
    check_error(httpx.get(f"{gateway}/v1/nope", timeout=TIMEOUT_S), 404, "not_found")
    wrong = httpx.get(gateway + PATH, timeout=TIMEOUT_S)
    assert "POST" in check_error(wrong, 405)["message"]
    assert wrong.headers["allow"] == "POST"


def test_503_when_the_models_queue_is_full(own_server: Server, own_gateway: str) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = LONG | {"model": "queued"}
        tasks = [asyncio.create_task(client.post(own_gateway + PATH, json=body)) for _ in range(4)]
        done: set[asyncio.Task[httpx.Response]] = set()
        try:
            while len(done) < 2:  # one runs, one waits
                done, _ = await asyncio.wait(tasks, timeout=0.05)
        finally:
            await leave(*set(tasks) - done)
        return [task.result() for task in done]

    for refused in run(work):
        error = check_error(refused, 503, "overloaded")
        assert "queue is full" in error["message"]
        assert int(refused.headers["retry-after"]) >= 1
    wait_for(lambda: generate(own_gateway, model="queued").status_code == 200)


def test_504_when_a_call_takes_too_long_and_the_model_stops(own_server: Server) -> None:
    with serve_gateway(own_server.grpc_url, timeout_s=0.5) as url:
        started = time.monotonic()
        response = generate(url, **LONG, model="queued")
        error = check_error(response, 504, "timeout")
        assert error["type"] == "timeout_error"
        assert "0.5 s" in error["message"]
        assert response.headers["x-should-retry"] == "false"
        assert time.monotonic() - started < 3
        wait_for(lambda: triton_metric(own_server, "triton_diffusers_running", model="queued") == 0)
        assert generate(url, model="queued").status_code == 200


def test_500_when_the_pipeline_fails(own_server: Server, own_gateway: str) -> None:
    response = generate(own_gateway, model="faulty", prompt="an error")
    error = check_error(response, 500, "pipeline_failed")
    assert "the denoiser fails" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert error["type"] == "server_error"


@pytest.mark.parametrize("model", ["queued", "streams"])
@pytest.mark.parametrize("stream", [False, True])
def test_499_a_caller_who_leaves_stops_the_model(
    own_server: Server, own_gateway: str, model: str, stream: bool
) -> None:
    def cancelled() -> float:
        name = "triton_diffusers_requests_total"
        return triton_metric(own_server, name, model=model, outcome="cancelled")

    def left() -> float:
        return gateway_metric(own_gateway, "requests_total", model=model, status="499")

    def running() -> float:
        return triton_metric(own_server, "triton_diffusers_running", model=model)

    before, left_before = cancelled(), left()

    async def work(client: httpx.AsyncClient) -> None:
        body = LONG | {"model": model, "stream": stream, "stream_progress": stream}
        task = asyncio.create_task(client.post(own_gateway + PATH, json=body))
        deadline = time.monotonic() + 20
        while not running():
            assert time.monotonic() < deadline
            assert not task.done()
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # a stream has begun
        await leave(task)

    run(work)
    wait_for(lambda: cancelled() == before + 1 and not running(), 5)
    wait_for(lambda: left() == left_before + 1, 5)
    assert generate(own_gateway, model=model).status_code == 200


def test_502_while_the_server_is_down_and_not_after(own_server: Server, own_gateway: str) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        task = asyncio.create_task(client.post(own_gateway + PATH, json=LONG | {"model": "queued"}))
        await asyncio.sleep(0.5)
        assert not task.done()
        own_server.kill()
        return await task

    check_error(run(work), 502, "upstream_unavailable")  # it was running then
    started = time.monotonic()
    error = check_error(generate(own_gateway, model="queued"), 502, "upstream_unavailable")
    assert own_server.grpc_url in error["message"]
    for path in ("/v1/models", "/v1/models/queued", "/health"):
        check_error(httpx.get(own_gateway + path, timeout=TIMEOUT_S), 502, "upstream_unavailable")
    assert time.monotonic() - started < 5
    assert httpx.get(f"{own_gateway}/health/live", timeout=TIMEOUT_S).status_code == 200
    own_server.restart()
    own_server.load("queued", DEMO_LOAD_S)
    started = time.monotonic()
    wait_for(lambda: generate(own_gateway, model="queued").status_code == 200, 5)
    assert httpx.get(f"{own_gateway}/health", timeout=TIMEOUT_S).json()["models"] == ["queued"]
    own_server.load("streams", DEMO_LOAD_S)
    assert generate(own_gateway, model="streams").status_code == 200  # known at once
