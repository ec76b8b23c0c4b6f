# SPDX-License-Identifier: Apache-2.0
"""How much the gateway takes: bodies, requests at once, slow senders; and other hosts' pages."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from builder.tritonserver.server import Server
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
    wait_for,
)
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.gateway.middleware import limits

LIMIT = 100_000


@pytest.fixture(scope="module")
def narrow(demo_server: Server) -> Iterator[str]:
    with serve_gateway(
        demo_server.grpc_url,
        max_body_bytes=LIMIT,
        max_body_bytes_in_all=LIMIT + 1000,
        max_requests=3,
    ) as url:
        yield url


def body(size: int) -> bytes:
    text = json.dumps(QUICK).encode()
    return text + b" " * (size - len(text))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_long_as_the_limit_and_no_longer(narrow: str, chunked: bool) -> None:
    def send(size: int) -> httpx.Response:
        content = iter([body(size)[n : n + 999] for n in range(0, size, 999)])
        headers = {"Content-Type": "application/json"}
        return httpx.post(
            narrow + PATH,
            content=content if chunked else body(size),
            headers=headers,
            timeout=TIMEOUT_S,
        )

    assert send(LIMIT).status_code == 200
    error = check_error(send(LIMIT + 1), 413, "body_too_large")
    assert str(LIMIT) in error["message"]
    assert generate(narrow).status_code == 200


def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent(narrow: str) -> None:
    host, port = narrow.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sent:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\n\r\n"
        sent.sendall(head.encode())
        assert sent.recv(100).startswith(b"HTTP/1.1 413")


def test_a_sender_of_a_gigabyte_reads_its_refusal(narrow: str) -> None:
    part = b"x" * (1 << 20)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(part) * 1024)}
    response = httpx.post(
        narrow + PATH, content=iter([part] * 1024), headers=headers, timeout=TIMEOUT_S
    )
    check_error(response, 413)


def test_more_requests_than_may_run_get_429(narrow: str, demo_server: Server) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[httpx.Response, ...]:
        running = [asyncio.create_task(client.post(narrow + PATH, json=LONG)) for _ in range(3)]
        try:
            while gateway_metric(narrow, "requests_running") < 4:
                await asyncio.sleep(0.02)
            refused = await client.post(narrow + PATH, json=QUICK)
            probes = [await client.get(narrow + path) for path in ("/health", "/metrics", "/")]
        finally:
            await leave(*running)
        return refused, *probes

    refused, *probes = run(work)
    error = check_error(refused, 429, "overloaded")
    assert error["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert [probe.status_code for probe in probes] == [200] * 3
    wait_for(lambda: generate(narrow).status_code == 200)


def test_bodies_are_bounded_together(narrow: str) -> None:
    """Those of requests that run, and of those that come the ones that hold most for longest."""

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        headers = {"Content-Type": "application/json"}
        held = json.dumps(LONG).encode() + b" " * (LIMIT // 2)
        task = asyncio.create_task(client.post(narrow + PATH, content=held, headers=headers))
        while gateway_metric(narrow, "requests_running") < 2:
            await asyncio.sleep(0.02)
        try:
            return [
                await client.post(narrow + PATH, content=body(size), headers=headers)
                for size in (LIMIT * 2 // 3, 1000)
            ]
        finally:
            await leave(task)

    refused, taken = run(work)
    check_error(refused, 429, "overloaded")
    assert "retry-after" in refused.headers
    assert taken.status_code == 200

    def whole() -> int:
        headers = {"Content-Type": "application/json"}
        url = narrow + PATH
        return httpx.post(url, content=body(LIMIT), headers=headers, timeout=TIMEOUT_S).status_code

    for _ in range(2):  # nothing of a request that ended is held
        wait_for(lambda: whole() == 200)


def test_a_body_that_does_not_come_is_408(narrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 0.3)
    host, port = narrow.removeprefix("http://").split(":")
    started = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as sent:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sent.sendall(f'{head}Content-Length: 50\r\n\r\n{{"prompt"'.encode())
        answer = b""
        while part := sent.recv(10_000):
            answer += part
    assert time.monotonic() - started < 5
    head_of_answer, _, rest = answer.partition(b"\r\n\r\n")
    assert head_of_answer.startswith(b"HTTP/1.1 408")
    assert json.loads(rest)["error"]["type"] == "timeout_error"


HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def connect(url: str) -> socket.socket:
    return socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), TIMEOUT_S)


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(HEAD + b"\r\n")
    return connection.recv(2**16).startswith(b"HTTP/1.1 200 OK")


def test_a_head_that_does_not_come_ends_its_connection(
    demo_server: Server,
) -> None:
    with serve_gateway(demo_server.grpc_url, head_timeout_s=0.5) as url:
        for begin in (b"", HEAD, None):
            with connect(url) as connection:
                if begin is None:  # a connection that was of use before
                    assert is_answered(connection)
                    begin = HEAD
                connection.sendall(begin)
                assert connection.recv(1) == b""


def test_only_heads_must_come_soon(demo_server: Server) -> None:
    with serve_gateway(demo_server.grpc_url, head_timeout_s=0.2) as url, connect(url) as idle:
        assert is_answered(idle)
        time.sleep(0.5)
        assert is_answered(idle)
        started = time.monotonic()
        assert generate(url, num_inference_steps=100).status_code == 200
        assert time.monotonic() - started > 0.2


def test_pages_of_other_hosts_may_not_call(gateway: str) -> None:
    headers = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    response = httpx.options(gateway + PATH, headers=headers, timeout=TIMEOUT_S)
    check_error(response, 403, "origin_not_allowed")
    assert not [name for name in response.headers if name.startswith("access-control")]
    response = httpx.get(f"{gateway}/v1/models", headers=headers, timeout=TIMEOUT_S)
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_pages_of_named_origins_may(demo_server: Server) -> None:
    with serve_gateway(
        demo_server.grpc_url, cors_origins="https://page.example", api_keys="k"
    ) as url:
        headers = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        headers["Access-Control-Request-Headers"] = "authorization,content-type"
        asked = httpx.options(url + PATH, headers=headers, timeout=TIMEOUT_S)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://page.example"
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = httpx.get(f"{url}/v1/models", headers=headers, timeout=TIMEOUT_S)
        check_error(refused, 401)  # which the page can read
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        headers["Origin"] = "https://other.example"
        other = httpx.options(url + PATH, headers=headers, timeout=TIMEOUT_S)
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nope", "/openapi.json"])
def test_answers_tell_browsers_to_be_strict(gateway: str, path: str) -> None:
    headers = httpx.get(gateway + path, timeout=TIMEOUT_S).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
