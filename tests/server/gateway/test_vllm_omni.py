# SPDX-License-Identifier: Apache-2.0
"""The HTTP requests of vLLM-Omni's example clients for pictures, and how these read the answers.

Those for videos and sound are in test_videos.py and test_audio.py.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.pictures import TIMEOUT_S, pictures_in, pixels_of, url_of
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from triton_diffusers.client import DiffusersClient

PROMPT = "a handwritten seven"
BODY = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 2,
    "true_cfg_scale": 2.0,
    "seed": 42,
    "num_outputs_per_prompt": 1,
}


@pytest.fixture(scope="module")
def seven(demo_server: Server) -> np.ndarray:
    """The picture that these fields ask for, made without the gateway."""
    with DiffusersClient(demo_server.grpc_url, model="demo") as client:
        result = client.generate(
            prompt=PROMPT, seed=42, num_inference_steps=2, true_cfg_scale=2.0, height=64, width=64
        )
    return np.asarray(result.arrays["images"][0])


def test_text_to_image_by_curl(gateway: str, seven: np.ndarray, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "extra_body": BODY}
    request = tmp_path / "request.json"
    request.write_text(json.dumps(body))
    command = ["curl", "-sS", "--fail-with-body", "--max-time", "60"]
    command += [f"{gateway}/v1/chat/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run(
        [*command, "-d", f"@{request}"], capture_output=True, text=True, check=True, timeout=90
    )
    url = json.loads(done.stdout)["choices"][0]["message"]["content"][0]["image_url"]["url"]
    assert np.array_equal(pixels_of(url), seven)


def test_text_in_parts(gateway: str, seven: np.ndarray) -> None:
    content = [{"type": "text", "text": PROMPT}]
    body = {"messages": [{"role": "user", "content": content}], "extra_body": BODY}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    (part,) = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    assert np.array_equal(pixels_of(part["image_url"]["url"]), seven)


def test_the_images_api(gateway: str, seven: np.ndarray) -> None:
    body = {"prompt": PROMPT, "n": 1, "size": "64x64", "response_format": "b64_json"}
    body |= {name: BODY[name] for name in ("num_inference_steps", "true_cfg_scale", "seed")}
    answer = httpx.post(f"{gateway}/v1/images/generations", json=body, timeout=TIMEOUT_S)
    (picture,) = pictures_in(answer)
    assert np.array_equal(picture, seven)


def test_what_a_server_loads_with_is_no_field_of_a_request(gateway: str) -> None:
    body = {"prompt": PROMPT, "vae_use_tiling": True}
    answer = httpx.post(f"{gateway}/v1/images/generations", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "vae_use_tiling"


@pytest.mark.parametrize("pictures", [1, 2])
def test_image_to_image(tiny_gateway: str, tiny_server: TinyServer, pictures: int) -> None:
    given = [draw_picture(number, 48) for number in range(pictures)]
    settings = {"num_inference_steps": 2, "height": 128, "width": 192, "seed": 42}
    alone = tiny_server.ask("edits", prompt="as a watercolor", image=given, **settings)
    content = [
        {"type": "text", "text": "as a watercolor"},
        *({"type": "image_url", "image_url": {"url": url_of(picture)}} for picture in given),
    ]
    body = {
        "model": "edits",
        "messages": [{"role": "user", "content": content}],
        "extra_body": settings,
    }
    answer = httpx.post(f"{tiny_gateway}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    parts = answer.json()["choices"][0]["message"]["content"]
    head, _, text = parts[0]["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(text, validate=True)
    assert np.array_equal(pixels_of(text), alone.arrays["images"][0])
