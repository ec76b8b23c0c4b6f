# SPDX-License-Identifier: Apache-2.0
"""The client with the demo model: what a first user does, over both protocols."""

import asyncio

import numpy as np
import pytest
from PIL import Image

from triton_diffusers.client import AsyncDiffusersClient, Cancelled, DiffusersClient, InvalidRequest

QUICK = {"prompt": "a handwritten seven", "num_inference_steps": 2}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["grpc", "http"])
def client(request, demo_server):
    url = demo_server.grpc_url if request.param == "grpc" else demo_server.http_url
    with DiffusersClient(url, "demo", request.param) as opened:
        yield opened


def test_a_picture_and_the_same_again(client, tmp_path):
    first = client.generate(**QUICK)
    (image,) = first.images
    assert (image.mode, image.size) == ("RGB", (64, 64))
    again = client.generate(**QUICK, seed=first.seeds)
    assert np.array_equal(again.arrays["images"], first.arrays["images"])
    assert again.seeds == first.seeds
    (path,) = again.save(tmp_path / "seven.png")
    assert np.array_equal(np.asarray(Image.open(path)), first.arrays["images"][0])


def test_both_protocols_and_asyncio_draw_the_same(demo_server):
    async def awaited():
        async with AsyncDiffusersClient(demo_server.grpc_url, "demo") as opened:
            return await opened.generate(**QUICK, seed=7)

    pictures = [asyncio.run(awaited()).arrays["images"]]
    for url, protocol in ((demo_server.grpc_url, "grpc"), (demo_server.http_url, "http")):
        with DiffusersClient(url, "demo", protocol) as opened:
            pictures.append(opened.generate(**QUICK, seed=7).arrays["images"])
    assert all(np.array_equal(picture, pictures[0]) for picture in pictures)


def test_both_protocols_and_asyncio_ask_how_the_model_is(demo_server):
    async def awaited():
        async with AsyncDiffusersClient(demo_server.grpc_url, "demo") as opened:
            return await opened.probe()

    answers = [asyncio.run(awaited())]
    for url, protocol in ((demo_server.grpc_url, "grpc"), (demo_server.http_url, "http")):
        with DiffusersClient(url, "demo", protocol) as opened:
            answers.append(opened.probe())
    for answer in answers:
        assert answer["status"] == "ready"
        assert answer["running"] == 0
        assert answer["pipeline_class"].endswith("Pipeline")
        assert "fps" not in answer


def test_encoded_pictures_show_the_same(client, tmp_path):
    plain = client.generate(**QUICK, seed=7).images[0]
    for extra in ({}, {"output_base64": True}):
        encoded = client.generate(**QUICK, seed=7, output_format="png", **extra)
        assert encoded.media[0].startswith(b"\x89PNG")
        assert np.array_equal(np.asarray(encoded.images[0]), np.asarray(plain))
        (path,) = encoded.save(tmp_path / "x.png")
        assert path.read_bytes() == encoded.media[0]
    jpeg = client.generate(**QUICK, seed=7, output_format="jpeg", output_quality=90)
    assert jpeg.images[0].format == "JPEG"


def test_several_pictures(client):
    result = client.generate(**QUICK, num_images_per_prompt=2, seed=[1, 2])
    assert len(result.images) == 2
    assert result.seeds == [1, 2]


def test_info_tells_what_was_used(client):
    info = client.generate(**QUICK, seed=7).info
    assert info["warnings"] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_inference_step": 3}, "num_inference_steps"),
        ({"height": -8}, "height"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"output_format": "tif"}, "output_format"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_a_refusal_says_what_to_send(client, wrong, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        client.generate(**{**QUICK, **wrong})
    assert not str(caught.value).startswith("[")
    assert client.generate(**QUICK).images


def test_a_timeout_stops_the_model(client):
    with pytest.raises(Cancelled):
        client.generate(prompt="a seven", num_inference_steps=1000, timeout_s=0.5)
    assert client.generate(**QUICK, timeout_s=60).images
