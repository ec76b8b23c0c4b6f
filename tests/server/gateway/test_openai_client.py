# SPDX-License-Identifier: Apache-2.0
"""The `openai` package, as its users call it, against the gateway."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from PIL import Image

from builder.tritonserver.server import Server
from triton_diffusers.client import DiffusersClient

PROMPT = "a handwritten seven"
STEPS = {"num_inference_steps": 2}


@pytest.fixture
def client(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(demo_server: Server) -> np.ndarray:
    """The picture of seed 7, made without the gateway."""
    with DiffusersClient(demo_server.grpc_url, model="demo") as client:
        return np.asarray(client.generate(prompt=PROMPT, seed=7, **STEPS).arrays["images"][0])


def pixels(b64_json: str | None) -> np.ndarray:
    assert b64_json
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(b64_json))))


def test_models_are_listed_and_described(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").object == "model"


def test_generate(client: openai.OpenAI, expected: np.ndarray) -> None:
    answer = client.images.generate(
        model="demo",
        prompt=PROMPT,
        size="64x64",
        n=1,
        quality="high",
        response_format="b64_json",
        user="somebody",
        extra_body={"seed": 7, **STEPS},
    )
    assert answer.data
    assert np.array_equal(pixels(answer.data[0].b64_json), expected)
    assert answer.model_extra
    assert answer.model_extra["seed"] == 7
    assert {note.partition(" ")[0] for note in answer.model_extra["notes"]} == {"quality", "user"}


def test_generate_as_url(client: openai.OpenAI, expected: np.ndarray) -> None:
    answer = client.images.generate(
        prompt=PROMPT, response_format="url", extra_body={"seed": 7, **STEPS}
    )
    assert answer.data
    head, _, text = (answer.data[0].url or "").partition(",")
    assert head == "data:image/png;base64"
    assert np.array_equal(pixels(text), expected)


def test_generate_asynchronously_several_at_once(gateway: str, expected: np.ndarray) -> None:
    async def all_three() -> list[openai.types.ImagesResponse]:
        async with openai.AsyncOpenAI(base_url=f"{gateway}/v1", api_key="none") as client:
            return await asyncio.gather(
                *(
                    client.images.generate(prompt=PROMPT, extra_body={"seed": seed, **STEPS})
                    for seed in (7, 8, 7)
                )
            )

    first, other, same = (pixels(a.data[0].b64_json) for a in asyncio.run(all_three()) if a.data)
    assert np.array_equal(first, expected)
    assert np.array_equal(same, expected)
    assert not np.array_equal(other, expected)


def test_generate_as_stream(client: openai.OpenAI, expected: np.ndarray) -> None:
    stream = client.images.generate(
        model="demo", prompt=PROMPT, stream=True, partial_images=2, extra_body={"seed": 7, **STEPS}
    )
    events = list(stream)
    assert [event.type for event in events] == ["image_generation.completed"]
    assert np.array_equal(pixels(events[0].b64_json), expected)


@pytest.mark.parametrize(
    ("model", "body", "error"),
    [
        ("demmo", {}, openai.NotFoundError),
        ("demo", {"nonsense": 1}, openai.BadRequestError),
        ("demo", {"num_inference_steps": -1}, openai.BadRequestError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_classes_of_the_package(
    client: openai.OpenAI,
    model: str,
    body: dict[str, int],
    error: type[openai.APIStatusError],
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.images.generate(model=model, prompt=PROMPT, stream=stream, extra_body=body)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]
