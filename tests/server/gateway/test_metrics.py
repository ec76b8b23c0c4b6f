# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: what is counted, under which labels."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.calling import PATH, TIMEOUT_S, gateway_metric, generate, wait_for
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer

ENDPOINT = f"POST {PATH}"


@pytest.fixture
def fresh(demo_server: Server) -> Iterator[str]:
    with serve_gateway(demo_server.grpc_url) as url:
        yield url


def series(url: str) -> set[str]:
    lines = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_requests_are_counted_by_endpoint_model_and_status(fresh: str) -> None:
    for _ in range(3):
        assert generate(fresh).status_code == 200
    assert generate(fresh, guidance=3).status_code == 400
    httpx.get(f"{fresh}/v1/models/demo", timeout=TIMEOUT_S)

    def count(**labels: str) -> float:
        return gateway_metric(fresh, "requests_total", **labels)

    assert count(endpoint=ENDPOINT, model="demo", status="200") == 3
    assert count(endpoint=ENDPOINT, status="400") == 1
    assert count(endpoint="GET /v1/models/{name:path}", status="200") == 1
    assert gateway_metric(fresh, "request_seconds_count", endpoint=ENDPOINT) == 4


def test_what_the_gateway_adds_is_told(fresh: str) -> None:
    for _ in range(5):
        generate(fresh, num_inference_steps=5)
    assert gateway_metric(fresh, "added_seconds_count", endpoint=ENDPOINT) == 5
    added = gateway_metric(fresh, "added_seconds_sum", endpoint=ENDPOINT)
    whole = gateway_metric(fresh, "request_seconds_sum", endpoint=ENDPOINT)
    assert 0 < added < whole


def test_callers_cannot_make_series(fresh: str) -> None:
    def call(name: str) -> None:
        httpx.get(f"{fresh}/{name}", timeout=TIMEOUT_S)
        httpx.get(f"{fresh}/v1/models/{name}", timeout=TIMEOUT_S)
        httpx.request(name.upper(), f"{fresh}/v1/models", timeout=TIMEOUT_S)
        generate(fresh, model=name)

    call("first")
    series(fresh)
    before = series(fresh)
    for name in ("second", "third"):
        call(name)
    assert series(fresh) == before
    assert not [line for line in before if "first" in line.lower()]


def test_jobs_are_counted_by_status(tiny_server: TinyServer, tiny_gateway: str) -> None:
    tiny_server.load("wan")

    def completed() -> float:
        return gateway_metric(tiny_gateway, "jobs", status="completed")

    before = completed()
    body = {"model": "wan", "prompt": "a kite", "size": "32x16", "num_frames": 5, "seed": 7}
    url = f"{tiny_gateway}/v1/videos"
    job = httpx.post(url, json=body | {"num_inference_steps": 2}, timeout=TIMEOUT_S).json()
    wait_for(lambda: completed() == before + 1, 60)
    httpx.delete(f"{url}/{job['id']}", timeout=TIMEOUT_S)
    assert completed() == before


def test_the_process_is_told(fresh: str) -> None:
    text = httpx.get(f"{fresh}/metrics", timeout=TIMEOUT_S).text
    assert "process_resident_memory_bytes" in text
    assert gateway_metric(fresh, "requests_running") == 1  # this one
