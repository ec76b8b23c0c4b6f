# SPDX-License-Identifier: Apache-2.0
"""Requests that run long, that are left, and what an error must look like."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx

from builder.tritonserver.server import Server
from tests.waiting import wait_for as wait_for

T = TypeVar("T")

TIMEOUT_S = 60.0
PATH = "/v1/images/generations"
QUICK = {"prompt": "a handwritten seven", "seed": 7, "num_inference_steps": 1}
LONG = QUICK | {"num_inference_steps": 900}
"""A call of many seconds."""


def generate(url: str, **changes: Any) -> httpx.Response:
    return httpx.post(url + PATH, json=QUICK | changes, timeout=TIMEOUT_S)


def check_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Assert that an answer is OpenAI's error object; return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    if code is not None:
        assert error["code"] == code
    return error


def run(work: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    """Run a coroutine that gets a client."""

    async def main() -> T:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
            return await asyncio.wait_for(work(client), 2 * TIMEOUT_S)

    return asyncio.run(main())


async def leave(*tasks: asyncio.Task[Any]) -> None:
    """Cancel requests: their connections are closed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def triton_metric(server: Server, name: str, **labels: str) -> float:
    """The sum of a metric's series on tritonserver that have these labels."""
    return total(server.metrics(), name, labels)


def gateway_metric(url: str, name: str, **labels: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text
    return total(text, f"triton_diffusers_gateway_{name}", labels)


def total(text: str, name: str, labels: dict[str, str]) -> float:
    """The sum of the series of a metric that have these labels, in Prometheus' text format."""
    found = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name:
            given = dict(re.findall(r'(\w+)="([^"]*)"', series))
            if labels.items() <= given.items():
                found += float(value)
    return found
