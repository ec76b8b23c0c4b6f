# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/generations against the demo model on a real server."""

from __future__ import annotations

import base64
import io

import httpx
import numpy as np
import pytest
from PIL import Image

from builder.tritonserver.server import Server
from triton_diffusers.client import DiffusersClient

SEVEN = {"prompt": "a handwritten seven", "seed": 7, "num_inference_steps": 2}


def post(url: str, **body: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=60)


def pictures(response: httpx.Response) -> list[np.ndarray]:
    assert response.status_code == 200, response.text
    files = [base64.b64decode(part["b64_json"]) for part in response.json()["data"]]
    return [np.asarray(Image.open(io.BytesIO(file))) for file in files]


def test_the_picture_is_the_one_that_the_model_makes_without_the_gateway(
    gateway: str, demo_server: Server
) -> None:
    with DiffusersClient(demo_server.grpc_url, model="demo") as client:
        expected = client.generate(**SEVEN).arrays["images"]
    (picture,) = pictures(post(gateway, **SEVEN))
    assert np.array_equal(picture, expected[0])


def test_the_prompt_may_be_among_the_pipelines_arguments(gateway: str) -> None:
    held = {"prompt": SEVEN["prompt"]}
    body = {name: value for name, value in SEVEN.items() if name != "prompt"}
    (expected,) = pictures(post(gateway, **SEVEN))
    for holder in ("diffusers_kwargs", "extra_body"):
        (picture,) = pictures(post(gateway, **body, **{holder: held}))
        assert np.array_equal(picture, expected)


def test_the_seed_that_was_drawn_is_told_and_gives_the_same_picture(gateway: str) -> None:
    for open_seed in ({}, {"seed": -1}):
        first = post(gateway, prompt="a handwritten seven", num_inference_steps=2, **open_seed)
        seed = first.json()["seed"]
        assert 0 <= seed < 2**32
        again = post(gateway, **SEVEN | {"seed": seed})
        assert np.array_equal(pictures(first)[0], pictures(again)[0])


@pytest.mark.parametrize(
    ("body", "status", "param", "text"),
    [
        ({"model": "demmo"}, 404, "model", "Did you mean 'demo'?"),
        ({"guidence_scale": 3}, 400, "guidence_scale", "Did you mean 'guidance_scale'?"),
        ({"shared_memory": True}, 400, "shared_memory", "Accepted:"),
        ({"self": 1}, 400, "self", "Accepted:"),
        ({"extra_args": {"flow_shift": 10**400}}, 400, "flow_shift", "cannot change"),
        ({"generator_device": "x" * 5000}, 400, "generator_device", "device: x"),
        ({"x" * 5000: 1}, 400, f"{'x' * 100} ... {'x' * 100}", "Accepted:"),
        ({"size": "60x60"}, 400, "size", "Nearest size: "),
        ({"strength": 0.5}, 400, "strength", "Accepted:"),
        ({"n": 0}, 400, "n", "greater than or equal to 1"),
        ({"diffusers_kwargs": {"seed": 8}}, 400, "seed", "twice"),
        ({"extra_body": {"stream": True}}, 400, "stream", "inside extra_body"),
        ({"extra_body": {"output_format": "tensor"}}, 400, "output_format", "'png', 'jpeg'"),
        ({"extra_params": {"n": "two"}}, 400, "n", "valid integer"),
        ({"n": 100_000}, 400, "n", "max_outputs"),
        ({"output_compression": 5}, 400, "output_compression", "no effect without"),
    ],
)
def test_what_the_model_cannot_take_is_refused_by_name(
    gateway: str, body: dict[str, object], status: int, param: str, text: str
) -> None:
    response = post(gateway, **SEVEN | body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert text in error["message"]
    assert len(error["message"]) < 2100
