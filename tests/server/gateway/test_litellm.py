# SPDX-License-Identifier: Apache-2.0
"""The `litellm` package against the gateway, as any OpenAI-compatible service."""

from __future__ import annotations

import asyncio
import base64
import io
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its price list is not fetched

import litellm
import numpy as np
import pytest
from PIL import Image

from builder.tritonserver.server import Server
from tests.server.gateway.pictures import file_of
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from triton_diffusers.client import DiffusersClient

PROMPT = "a handwritten seven"


@pytest.fixture
def call(gateway: str) -> dict[str, Any]:
    """The arguments of every call."""
    return {
        "model": "openai/demo",
        "api_base": f"{gateway}/v1",
        "api_key": "none",
        "num_retries": 0,
        "timeout": 60,
    }


@pytest.fixture(scope="module")
def expected(demo_server: Server) -> np.ndarray:
    """The picture of seed 7, made without the gateway."""
    with DiffusersClient(demo_server.grpc_url, model="demo") as client:
        result = client.generate(prompt=PROMPT, seed=7, num_inference_steps=2)
    return np.asarray(result.arrays["images"][0])


def picture(answer: Any) -> np.ndarray:
    file = base64.b64decode(answer.data[0].b64_json)
    return np.asarray(Image.open(io.BytesIO(file)))


def test_image_generation(call: dict[str, Any], expected: np.ndarray) -> None:
    answer = litellm.image_generation(
        prompt=PROMPT, size="64x64", n=1, extra_body={"seed": 7, "num_inference_steps": 2}, **call
    )
    assert np.array_equal(picture(answer), expected)


def test_image_generation_asynchronously(call: dict[str, Any], expected: np.ndarray) -> None:
    answer = asyncio.run(
        litellm.aimage_generation(
            prompt=PROMPT, extra_body={"seed": 7, "num_inference_steps": 2}, **call
        )
    )
    assert np.array_equal(picture(answer), expected)


def test_a_refusal_is_its_bad_request(call: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="Did you mean 'guidance_scale'"):
        litellm.image_generation(prompt=PROMPT, extra_body={"guidence_scale": 1}, **call)


def test_an_unknown_model_is_its_not_found(call: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError, match="Served: demo"):
        litellm.image_generation(prompt=PROMPT, **call | {"model": "openai/demmo"})


def test_image_edit(tiny_gateway: str, tiny_server: TinyServer, call: dict[str, Any]) -> None:
    """litellm drops the fields of extra_body here, the seed too."""
    tiny_server.load("repaints")
    answer = litellm.image_edit(
        image=io.BytesIO(file_of(draw_picture(1, 48))),
        prompt="a red car",
        **call | {"model": "openai/repaints", "api_base": f"{tiny_gateway}/v1"},
    )
    assert picture(answer).shape == (32, 48, 3)
