# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/edits and /v1/images/variations against tiny pipelines on a real server."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from tests.server.gateway.pictures import (
    TIMEOUT_S,
    error_in,
    file_of,
    pictures_in,
    pixels_of,
    url_of,
)
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_mask, draw_picture

PICTURE = draw_picture(1, 48)
SECOND = draw_picture(2, 48)
MASK = draw_mask(48)
STEPS = {"num_inference_steps": 4, "seed": 7}
REPAINT = {"prompt": "a red car", "strength": 0.5, "guidance_scale": 3.5} | STEPS
NO_ASCII = (
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\ncaf\xc3\xa9-\xff\r\n--B--\r\n'
)
INPAINT = {"prompt": "a red car", "guidance_scale": 3.5} | STEPS


def upload(
    url: str, files: list[tuple[str, Any]], path: str = "edits", **fields: Any
) -> httpx.Response:
    data = {name: str(value) for name, value in fields.items()}
    parts = [(name, (f"{name}.png", content, "image/png")) for name, content in files]
    return httpx.post(f"{url}/v1/images/{path}", data=data, files=parts, timeout=TIMEOUT_S)


def post(url: str, path: str = "edits", **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/images/{path}", json=body, timeout=TIMEOUT_S)


def transparent(mask: Image.Image) -> Image.Image:
    """OpenAI's kind of mask: the pixels that are white in `mask` are transparent."""
    made = Image.new("RGBA", mask.size, (10, 20, 30, 255))
    made.putalpha(Image.fromarray(255 - np.asarray(mask)))
    return made


@pytest.fixture(scope="module")
def repainted(tiny_server: TinyServer) -> np.ndarray:
    """What plain diffusers makes of PICTURE."""
    tiny_server.load("repaints")
    inputs = {n: v for n, v in REPAINT.items() if n != "seed"} | {"image": PICTURE}
    return tiny_server.plain("repaints", inputs)["images"][0]


@pytest.fixture(scope="module")
def inpainted(tiny_server: TinyServer) -> np.ndarray:
    """What plain diffusers makes of PICTURE where MASK is white."""
    tiny_server.load("inpaints")
    inputs = {n: v for n, v in INPAINT.items() if n != "seed"}
    return tiny_server.plain("inpaints", inputs | {"image": PICTURE, "mask_image": MASK})["images"][
        0
    ]


@pytest.mark.parametrize("name", ["image", "image[]", "images"])
def test_an_upload_gives_the_picture_that_plain_diffusers_makes(
    tiny_gateway: str, repainted: np.ndarray, name: str
) -> None:
    response = upload(tiny_gateway, [(name, file_of(PICTURE))], model="repaints", **REPAINT)
    (picture,) = pictures_in(response)
    assert np.array_equal(picture, repainted)
    assert response.json()["seed"] == 7


@pytest.mark.parametrize(
    "given",
    [
        {"images": [{"image_url": url_of(PICTURE)}]},
        {"image": url_of(PICTURE)},
        {"image": base64.b64encode(file_of(PICTURE)).decode()},
        {"images": [url_of(PICTURE)]},
        {"diffusers_kwargs": {"image": url_of(PICTURE)}},
        {"extra_body": {"image_bytes": url_of(PICTURE)}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_json_gives_the_same(
    tiny_gateway: str, repainted: np.ndarray, given: dict[str, Any]
) -> None:
    (picture,) = pictures_in(post(tiny_gateway, model="repaints", **REPAINT, **given))
    assert np.array_equal(picture, repainted)


def test_a_generation_takes_a_picture_too(tiny_gateway: str, repainted: np.ndarray) -> None:
    body = REPAINT | {"model": "repaints", "image": url_of(PICTURE)}
    (picture,) = pictures_in(post(tiny_gateway, "generations", **body))
    assert np.array_equal(picture, repainted)


def test_without_a_mask_what_is_transparent_is_edited(
    tiny_gateway: str, inpainted: np.ndarray
) -> None:
    cutout = PICTURE.copy()
    cutout.putalpha(Image.fromarray(255 - np.asarray(MASK)))
    files = [("image", file_of(cutout))]
    response = upload(tiny_gateway, files, model="inpaints", **INPAINT)
    assert np.array_equal(pictures_in(response)[0], inpainted)
    note = "no mask is sent: the transparent pixels of image are edited (OpenAI)"
    assert note in response.json()["notes"]
    # a mask that is sent counts, and an opaque picture has none
    response = upload(tiny_gateway, [*files, ("mask", file_of(MASK))], model="inpaints", **INPAINT)
    assert np.array_equal(pictures_in(response)[0], inpainted)
    assert not any(note.startswith("no mask") for note in response.json()["notes"])
    opaque = upload(tiny_gateway, [("image", file_of(PICTURE))], model="inpaints", **INPAINT)
    assert "mask" in error_in(opaque)["message"]


def test_masks_of_openai_and_of_diffusers_are_told_apart(
    tiny_gateway: str, inpainted: np.ndarray
) -> None:
    notes = []
    for mask in (MASK, transparent(MASK)):
        files = [("image", file_of(PICTURE)), ("mask", file_of(mask))]
        response = upload(tiny_gateway, files, model="inpaints", **INPAINT)
        assert np.array_equal(pictures_in(response)[0], inpainted)
        notes += [note for note in response.json()["notes"] if note.startswith("mask")]
    assert ["white pixels" in note for note in notes] == [True, False]
    assert ["transparent pixels: these" in note for note in notes] == [False, True]


def test_a_mask_with_alpha_but_nothing_transparent_is_diffusers_kind(
    tiny_gateway: str, inpainted: np.ndarray
) -> None:
    body = INPAINT | {"image": url_of(PICTURE), "mask": {"image_url": url_of(MASK.convert("LA"))}}
    response = post(tiny_gateway, model="inpaints", **body)
    assert np.array_equal(pictures_in(response)[0], inpainted)
    named = post(
        tiny_gateway, **INPAINT, model="inpaints", image=url_of(PICTURE), mask_image=url_of(MASK)
    )
    assert np.array_equal(pictures_in(named)[0], inpainted)


def test_without_a_mask_transparent_pixels_are_edited(
    tiny_gateway: str, inpainted: np.ndarray
) -> None:
    """As with OpenAI. Form and JSON; a picture with nothing transparent is no mask."""
    clear = PICTURE.copy()
    clear.putalpha(Image.fromarray(255 - np.asarray(MASK)))
    for response in (
        upload(tiny_gateway, [("image", file_of(clear))], **INPAINT, model="inpaints"),
        post(tiny_gateway, **INPAINT, model="inpaints", image=url_of(clear)),
    ):
        assert np.array_equal(pictures_in(response)[0], inpainted)
        assert any("transparent pixels of image" in note for note in response.json()["notes"])
    opaque = PICTURE.convert("RGBA")
    error = error_in(post(tiny_gateway, **INPAINT, model="inpaints", image=url_of(opaque)))
    assert "mask" in error["message"]


def test_the_mask_matters(tiny_gateway: str, inpainted: np.ndarray) -> None:
    inverted = Image.fromarray(255 - np.asarray(MASK))
    body = INPAINT | {"image": url_of(PICTURE), "mask": url_of(inverted)}
    assert not np.array_equal(
        pictures_in(post(tiny_gateway, model="inpaints", **body))[0], inpainted
    )


def test_several_pictures_where_the_model_takes_several(
    tiny_server: TinyServer, tiny_gateway: str
) -> None:
    asked = {"prompt": "both", "height": 128, "width": 192, "num_inference_steps": 2, "seed": 7}
    expected = tiny_server.ask("edits", **asked, image=[file_of(PICTURE), file_of(SECOND)])
    files = [("image[]", file_of(PICTURE)), ("image[]", file_of(SECOND))]
    (picture,) = pictures_in(upload(tiny_gateway, files, model="edits", **asked))
    assert np.array_equal(picture, expected.arrays["images"][0])


def test_variations_need_no_prompt(tiny_server: TinyServer, tiny_gateway: str) -> None:
    expected = tiny_server.ask("varies", image=file_of(PICTURE), height=32, width=48, **STEPS)
    files = [("image", file_of(PICTURE))]
    response = upload(tiny_gateway, files, "variations", model="varies", size="48x32", **STEPS)
    assert np.array_equal(pictures_in(response)[0], expected.arrays["images"][0])
    assert response.json()["size"] == "48x32"


def test_the_openai_client_edits_streams_and_varies(
    tiny_server: TinyServer, tiny_gateway: str, repainted: np.ndarray
) -> None:
    tiny_server.load("varies")
    extra = {n: v for n, v in REPAINT.items() if n != "prompt"}
    with openai.OpenAI(base_url=f"{tiny_gateway}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": "repaints",
            "image": ("car.png", file_of(PICTURE)),
            "prompt": "a red car",
            "input_fidelity": "high",
            "quality": "high",
        }
        whole = client.images.edit(**asked, extra_body=extra)
        assert whole.data
        assert whole.data[0].b64_json
        assert np.array_equal(pixels_of(whole.data[0].b64_json), repainted)
        nested = client.images.edit(**asked, extra_body={"diffusers_kwargs": extra})
        assert nested.data
        assert nested.data[0].b64_json == whole.data[0].b64_json
        events = list(client.images.edit(**asked, stream=True, extra_body=extra))
        assert [event.type for event in events] == ["image_edit.completed"]
        assert np.array_equal(pixels_of(events[0].b64_json), repainted)
        varied = client.images.create_variation(
            image=("car.png", file_of(PICTURE)), model="varies", n=2, extra_body=STEPS
        )
        assert varied.data
        assert len(varied.data) == 2


def test_cosmetic_fields_are_noted(tiny_gateway: str, repainted: np.ndarray) -> None:
    body = REPAINT | {"image": url_of(PICTURE), "input_fidelity": "high", "user": "me"}
    notes = post(tiny_gateway, model="repaints", **body).json()["notes"]
    assert {note.split(" ")[0] for note in notes} >= {"input_fidelity", "user"}


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"num_inference_steps": "abc"}, "num_inference_steps", "valid integer"),
        ({"clip_skip": "abc"}, "clip_skip", "takes a whole number"),
        ({"strength": "much"}, "strength", "valid number"),
        ({"diffusers_kwargs": '{"clip_skip": "abc"}'}, "clip_skip", "whole number"),
        ({"diffusers_kwargs": "{"}, "diffusers_kwargs", "send a JSON object"),
        ({"strengh": "0.5"}, "strengh", "Did you mean 'strength'?"),
        ({"mask": "whatever"}, "mask", "has no input for it. Its media inputs: image"),
        ({"output_base64": "true"}, "output_base64", "Accepted:"),
        ({"image": "tests/x.png"}, "image", "neither a data: URL nor base64"),
        ({"n": "two"}, "n", "valid integer"),
        ({"partial_images": "2"}, "partial_images", "without stream"),
    ],
)
def test_a_form_is_refused_by_the_name_of_its_field(
    tiny_gateway: str, repainted: np.ndarray, fields: dict[str, str], param: str, text: str
) -> None:
    files = [] if "image" in fields else [("image", file_of(PICTURE))]
    sent = {"model": "repaints", "prompt": "a red car"} | fields
    error = error_in(upload(tiny_gateway, [*files, ("spare", b"x")][: len(files) or 2], **sent))
    assert error["param"] == param
    assert text in error["message"]


def test_texts_of_a_form_are_typed_by_the_models_inputs(
    tiny_server: TinyServer, tiny_gateway: str, repainted: np.ndarray
) -> None:
    asked = REPAINT | {"eta": 0.5, "num_images_per_prompt": 2}
    expected = tiny_server.ask("repaints", **asked, image=file_of(PICTURE)).arrays["images"]
    response = upload(tiny_gateway, [("image", file_of(PICTURE))], model="repaints", **asked)
    assert np.array_equal(pictures_in(response), expected)
    listed = upload(
        tiny_gateway,
        [("image", file_of(PICTURE))],
        model="repaints",
        **REPAINT | {"seed": "", "diffusers_kwargs": json.dumps({"seed": [1, 2], "n": 2})},
    )
    assert error_in(listed)["param"] == "seed"


@pytest.mark.parametrize("path", ["generations", "edits", "variations"])
def test_a_body_of_another_type_is_refused(tiny_gateway: str, path: str) -> None:
    for headers in ({"Content-Type": "text/plain"}, {}):
        response = httpx.post(
            f"{tiny_gateway}/v1/images/{path}", content=b"a red car", headers=headers
        )
        error = error_in(response, 415)
        assert error["code"] == "unsupported_media_type"
        assert "application/json" in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (b"{", "application/json", "the body is no JSON"),
        (b"[" * 100_000, "application/json", "no JSON"),
        (b"[1]", "application/json", "send an object"),
        (b"no parts", "multipart/form-data", "oundary"),
        (b"no parts", "multipart/form-data; boundary=x", ""),
        (b'{"model": 3}', "application/json", "model: send the name"),
        (NO_ASCII, "multipart/form-data; boundary=B; charset=undefined", "send UTF-8"),
    ],
)
def test_a_broken_body_is_refused(tiny_gateway: str, content: bytes, kind: str, text: str) -> None:
    url = f"{tiny_gateway}/v1/images/edits"
    error = error_in(httpx.post(url, content=content, headers={"Content-Type": kind}))
    assert text in error["message"]


def test_a_model_without_pictures_in_refuses_one(gateway: str) -> None:
    error = error_in(upload(gateway, [("image", file_of(PICTURE))], prompt="seven"))
    assert error["param"] == "image"
    error = error_in(post(gateway, prompt="seven"))
    assert "none is sent" in error["message"]


def test_a_picture_is_needed(tiny_gateway: str, repainted: np.ndarray) -> None:
    error = error_in(post(tiny_gateway, model="repaints", **REPAINT))
    assert error["message"] == "image: none is sent; media inputs of 'repaints': image"


def test_the_document_tells_of_files(tiny_gateway: str) -> None:
    document = httpx.get(f"{tiny_gateway}/openapi.json").json()
    content = document["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]
    assert content.keys() == {"multipart/form-data", "application/json"}
    form = content["multipart/form-data"]["schema"]["properties"]
    assert form["mask"]["items"] == form["image"]["items"] == {"type": "string", "format": "binary"}
    assert "num_inference_steps" in form
