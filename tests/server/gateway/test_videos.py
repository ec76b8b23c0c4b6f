# SPDX-License-Identifier: Apache-2.0
"""/v1/videos against tiny video models on a real server."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.server.tiny_entries import TinyServer

KITE = {
    "prompt": "a kite over a field",
    "num_inference_steps": 2,
    "num_frames": 5,
    "seed": 7,
}
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def url(tiny_gateway: str, tiny_server: TinyServer) -> str:
    for entry in ("wan", "wan-streamed", "wan-starts", "clips", "ltx"):
        tiny_server.load(entry)
    return tiny_gateway


def create(url: str, model: str = "wan", **body: Any) -> httpx.Response:
    fields = {**KITE, "size": "32x16", **body, "model": model}
    sent = {name: value for name, value in fields.items() if value is not None}
    return httpx.post(f"{url}/v1/videos", json=sent, timeout=TIMEOUT_S)


def wait(url: str, created: httpx.Response, status: str = "completed") -> dict[str, Any]:
    """Return the job when it has ended, as `status` says."""
    assert created.status_code == 200, created.text
    id = created.json()["id"]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        job: dict[str, Any] = httpx.get(f"{url}/v1/videos/{id}").json()
        if job["status"] not in ("queued", "in_progress"):
            assert job["status"] == status, job
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def content(url: str, job: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.get(f"{url}/v1/videos/{job['id']}/content", headers=headers, timeout=TIMEOUT_S)


def test_a_job_makes_the_video_that_the_model_makes_without_the_gateway(
    url: str, tiny_server: TinyServer
) -> None:
    created = create(url)
    expected = tiny_server.ask("wan", **KITE, width=32, height=16, output_format="mp4")
    job = wait(url, created)
    assert job["progress"] == 100
    video = content(url, job)
    assert video.headers["content-type"] == "video/mp4"
    assert video.content == expected.media[0]
