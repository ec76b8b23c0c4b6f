# SPDX-License-Identifier: Apache-2.0
"""What may be sent as a picture, a mask or sound, and what is refused before the model sees it."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.server.gateway.pictures import TIMEOUT_S, error_in, file_of, pictures_in, url_of
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_mask, draw_picture

PICTURE = draw_picture(1, 48)
FILE = file_of(PICTURE)
ASKED = {"prompt": "a red car", "num_inference_steps": 2, "seed": 7}
LIMIT = len(FILE) + 100


def post(url: str, model: str, path: str = "edits", **body: Any) -> httpx.Response:
    sent = ASKED | {"model": model} | body
    return httpx.post(f"{url}/v1/images/{path}", json=sent, timeout=TIMEOUT_S)


def bomb(width: int, height: int) -> bytes:
    """A PNG of few bytes whose header promises many pixels, with transparency."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10)))
    return b"\x89PNG\r\n\x1a\n" + content + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def url(tiny_server: TinyServer, tiny_gateway: str) -> str:
    for entry in ("repaints", "inpaints"):
        tiny_server.load(entry)
    return tiny_gateway


@pytest.fixture(scope="module")
def narrow(tiny_server: TinyServer, url: str) -> Iterator[str]:
    """A gateway that takes small files only."""
    with serve_gateway(tiny_server.triton.grpc_url, max_upload_bytes=LIMIT) as narrow:
        yield narrow


@pytest.mark.parametrize("path", ["edits", "generations", "variations"])
@pytest.mark.parametrize("field", ["image", "image_bytes"])
def test_no_path_is_read(url: str, tmp_path: Path, path: str, field: str) -> None:
    """A path whose letters are base64 is taken as that, and what it holds is no picture."""
    file = tmp_path / "picture.png"
    file.write_bytes(FILE)
    hidden = Path("/tmp") / base64.b32encode(tmp_path.name.encode())[:7].decode()
    hidden.write_bytes(FILE)
    try:
        for text in (str(file), f"file://{file}", "/etc/passwd", str(hidden)):
            for body in ({field: text}, {"diffusers_kwargs": {field: text}}, {field: [text]}):
                error = error_in(post(url, "repaints", path, **body))
                assert error["param"] == field
    finally:
        hidden.unlink()


def test_a_form_reads_no_path_either(url: str, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(FILE)
    data = {"model": "repaints", "prompt": "x", "image": str(file)}
    files = [("spare_file", ("x.png", FILE))]
    error = error_in(httpx.post(f"{url}/v1/images/edits", data=data, files=files))
    assert "Paths are not accepted" in error["message"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "empty"),
        ("data:image/png,abc", "must be data:TYPE;base64"),
        ("data:image/png;base64", "must be data:TYPE;base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64,a", "neither a data: URL nor base64"),
        ("ftp://host/x.png", "neither a data: URL nor base64"),
        ("https://host/x.png", "fetches nothing"),
        (" https://host/x.png", "neither a data: URL nor base64"),
        ([], "an empty list"),
        ([[url_of(PICTURE)]], "list; send a data: URL"),
        (3, "int; send a data: URL"),
        (True, "bool; send a data: URL"),
        ({"file_id": "file-1"}, "file_id"),
        ({"image_url": None}, "NoneType"),
        ({"image_url": {"url": 3}}, "int"),
        ({}, "NoneType"),
        ("\ud800", ""),
        ("é" * 8, "neither a data: URL nor base64"),
        (base64.b64encode(b"no picture, but base64").decode(), "no image"),
    ],
    ids=str,
)
def test_what_is_no_file_is_refused(url: str, value: Any, text: str) -> None:
    content = json.dumps(ASKED | {"model": "repaints", "image": value})
    headers = {"Content-Type": "application/json"}
    error = error_in(httpx.post(f"{url}/v1/images/edits", content=content, headers=headers))
    assert error["param"] == "image"
    assert text in error["message"]


@pytest.mark.parametrize("text", [url_of(PICTURE).replace("data:image/png", "DATA:")])
def test_spellings_of_a_data_url(url: str, text: str) -> None:
    expected = pictures_in(post(url, "repaints", image=url_of(PICTURE)))
    encoded = base64.b64encode(FILE).decode()
    spaced = "\n".join(encoded[i : i + 76] for i in range(0, len(encoded), 76))
    for sent in (text, encoded, spaced, base64.urlsafe_b64encode(FILE).decode()):
        assert np.array_equal(pictures_in(post(url, "repaints", image=sent)), expected)


def test_a_file_over_the_limit_is_413_wherever_it_comes_from(narrow: str) -> None:
    large = FILE + bytes(200)
    data = {"model": "repaints", "prompt": "x"}
    answers = [
        httpx.post(f"{narrow}/v1/images/edits", data=data, files={"image": large}),
        httpx.post(f"{narrow}/v1/images/edits", data=data, files={"image": bytes(10 * LIMIT)}),
        post(narrow, "repaints", image=base64.b64encode(large).decode()),
        post(narrow, "repaints", diffusers_kwargs={"image": base64.b64encode(large).decode()}),
        post(narrow, "repaints", "generations", image=[base64.b64encode(large).decode()]),
    ]
    for answer in answers:
        error = error_in(answer, 413)
        assert error["code"] == "file_too_large"
        assert error["param"] == "image"
        assert f"at most {LIMIT}" in error["message"]
    assert len(pictures_in(post(narrow, "repaints", image=url_of(PICTURE)))) == 1


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(30000, 30000), (10000, 9000), (2**31 - 1, 2**31 - 1)])
def test_a_small_file_of_many_pixels_is_refused(url: str, size: tuple[int, int]) -> None:
    huge = base64.b64encode(bomb(*size)).decode()
    error = error_in(post(url, "inpaints", image=url_of(PICTURE), mask=huge))
    assert error["param"] == "mask"
    assert error_in(post(url, "inpaints", image=huge, mask=url_of(draw_mask(48))))


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (b"no picture", "no picture"),
        (FILE[: len(FILE) // 2], "broken"),
        (bomb(48, 32), "broken"),
    ],
)
def test_a_broken_mask_is_refused(url: str, mask: bytes, text: str) -> None:
    sent = base64.b64encode(mask).decode()
    error = error_in(post(url, "inpaints", image=url_of(PICTURE), mask=sent))
    assert "mask" in error["message"]
    assert error["param"] == "mask"
    assert text in error["message"]


def test_masks_of_every_kind_of_transparency(url: str) -> None:
    """Palettes and grey with alpha are read as RGBA is; turned ones are turned."""
    alpha = Image.fromarray(255 - np.asarray(draw_mask(48)))
    colour = Image.new("RGBA", (48, 32), (9, 9, 9, 255))
    colour.putalpha(alpha)
    grey = Image.merge("LA", (Image.new("L", (48, 32), 9), alpha))
    palette = alpha.point(lambda value: value // 255).convert("P")
    file = io.BytesIO()
    palette.save(file, format="PNG", transparency=0)
    masks = [url_of(colour), url_of(grey), base64.b64encode(file.getvalue()).decode()]
    answers = [post(url, "inpaints", image=url_of(PICTURE), mask=mask) for mask in masks]
    first, *others = [pictures_in(answer) for answer in answers]
    assert all(np.array_equal(first, other) for other in others)
    assert all("transparent pixels: these" in str(answer.json()["notes"]) for answer in answers)


def test_a_picture_by_two_names_is_refused(url: str) -> None:
    error = error_in(post(url, "repaints", image=url_of(PICTURE), image_bytes=url_of(PICTURE)))
    assert "both the input 'image'" in error["message"]
    error = error_in(post(url, "inpaints", mask=url_of(PICTURE), mask_image=url_of(PICTURE)))
    assert "both the input 'mask_image'" in error["message"]


def test_more_pictures_than_the_pipeline_takes_are_the_servers_to_refuse(url: str) -> None:
    error = error_in(post(url, "repaints", image=[url_of(PICTURE), url_of(PICTURE)]))
    assert error["message"]
