# SPDX-License-Identifier: Apache-2.0
"""Streams of previews, progress and pictures, from entries written with and without --decoupled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from builder.tritonserver.server import Server
from tests.server.conftest import PREVIEWED
from tests.server.gateway.pictures import TIMEOUT_S, error_in, pixels_of, url_of
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from triton_diffusers.client import DiffusersClient

STEPS = PREVIEWED["num_inference_steps"]
SEVEN = {"prompt": "a handwritten seven", "seed": 7}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(preview_server: Server, first_preview: Any) -> Server:
    return preview_server


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with serve_gateway(server.grpc_url) as url:
        yield url


@pytest.fixture(scope="module")
def seven(server: Server) -> np.ndarray:
    with DiffusersClient(server.grpc_url, "plain") as client:
        pixels: np.ndarray = client.generate(**SEVEN).arrays["images"][0]
    return pixels


def post(url: str, path: str = "generations", **body: Any) -> httpx.Response:
    sent = {"stream": True, **body}
    return httpx.post(f"{url}/v1/images/{path}", json=sent, timeout=TIMEOUT_S)


def events_in(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of an answer; each is named twice, as OpenAI's are."""
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


@pytest.mark.parametrize("partials", [0, 1, 2, 3])
def test_as_many_previews_as_asked_for_evenly_then_the_picture(
    url: str, seven: np.ndarray, partials: int
) -> None:
    body = SEVEN | {"model": "streams", "partial_images": partials, "stream_progress": True}
    events = events_in(post(url, **body))
    kinds = [event["type"].removeprefix("image_generation.") for event in events]
    assert kinds.count("progress") == STEPS
    assert kinds.count("partial_image") == partials
    assert kinds[-1] == "completed"
    partial = [event for event in events if "partial_image_index" in event]
    assert [event["partial_image_index"] for event in partial] == list(range(partials))
    after = [kinds[:i].count("progress") for i, k in enumerate(kinds) if k == "partial_image"]
    expected = [STEPS * (index + 1) / (partials + 1) for index in range(partials)]
    assert all(abs(a - e) <= 1 for a, e in zip(after, expected, strict=True)), after
    assert all(pixels_of(event["b64_json"]).shape == (16, 16, 3) for event in partial)
    assert all(event["size"] == "16x16" for event in partial)
    assert np.array_equal(pixels_of(events[-1]["b64_json"]), seven)
    assert events[-1]["seed"] == 7


def test_a_step_has_one_preview_at_most(url: str) -> None:
    body = SEVEN | {"model": "streams", "partial_images": 3, "num_inference_steps": 2}
    kinds = [event["type"].rpartition(".")[2] for event in events_in(post(url, **body))]
    assert kinds in (["partial_image", "completed"], ["completed"])


def test_each_picture_is_an_event(url: str) -> None:
    events = events_in(post(url, model="streams", **SEVEN, n=2, output_format="webp"))
    assert [event["type"] for event in events] == ["image_generation.completed"] * 2
    assert {event["output_format"] for event in events} == {"webp"}


def test_an_entry_that_does_not_stream_has_the_picture_only_and_says_why(
    url: str, seven: np.ndarray
) -> None:
    (event,) = events_in(post(url, model="plain", **SEVEN, partial_images=2))
    assert event["type"] == "image_generation.completed"
    assert np.array_equal(pixels_of(event["b64_json"]), seven)
    assert any("without --decoupled" in note for note in event["notes"])


def test_the_openai_client_reads_previews(url: str, seven: np.ndarray) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        events = list(
            client.images.generate(
                model="streams",
                prompt="a handwritten seven",
                stream=True,
                partial_images=2,
                extra_body={"seed": 7},
            )
        )
    partial, last = events[:-1], events[-1]
    assert [event.type for event in partial] == ["image_generation.partial_image"] * 2
    assert np.array_equal(pixels_of(last.b64_json), seven)


def test_edits_have_events_of_their_own(tiny_server: TinyServer, tiny_gateway: str) -> None:
    tiny_server.load("streamed-repaints")
    picture = draw_picture(1, 48)
    asked = {"prompt": "a red car", "strength": 0.5, "num_inference_steps": 4, "seed": 7}
    expected = tiny_server.ask("repaints", image=picture, **asked).arrays["images"][0]
    body = asked | {"model": "streamed-repaints", "image": url_of(picture)}
    *steps, last = events_in(post(tiny_gateway, "edits", **body, stream_progress=True))
    assert [(event["type"], event["step"], event["total"]) for event in steps] == [
        ("image_edit.progress", 1, 2),
        ("image_edit.progress", 2, 2),
    ]
    assert last["type"] == "image_edit.completed"
    assert np.array_equal(pixels_of(last["b64_json"]), expected)


@pytest.mark.parametrize("model", ["streams", "plain"])
def test_what_fails_before_the_first_event_has_its_status(url: str, model: str) -> None:
    error = error_in(post(url, model=model, **SEVEN, num_inference_steps=0))
    assert "num_inference_steps" in error["message"]
    assert error_in(post(url, model="steams", **SEVEN), 404)["code"] == "model_not_found"


def test_what_fails_later_is_an_event(server: Server) -> None:
    body = SEVEN | {"model": "streams", "size": "60x60", "stream_progress": True}
    with serve_gateway(server.grpc_url) as url:
        *steps, last = events_in(post(url, **body))
        assert [step["type"] for step in steps] == ["image_generation.progress"] * STEPS
        assert last["type"] == "error"
        assert last["error"]["param"] == "size"


def test_the_openai_client_raises_what_fails_later(server: Server) -> None:
    with (
        serve_gateway(server.grpc_url) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        events = client.images.generate(
            model="streams",
            prompt="a handwritten seven",
            size="60x60",
            stream=True,
            extra_body={"stream_progress": True},
        )
        with pytest.raises(openai.APIError, match="Nearest size: 64x64"):
            list(events)
