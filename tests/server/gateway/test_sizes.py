# SPDX-License-Identifier: Apache-2.0
"""Sizes that pipelines cannot make: refused with the nearest one, which works; then at once."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.pictures import TIMEOUT_S, error_in, pictures_in, url_of
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from triton_diffusers.client import DiffusersClient

NEAREST = re.compile(r"Nearest size: (\d+x\d+)\.")

ODD = ("60x60", "33x47", "100x64", "1x1", "63x31")


def post(url: str, **body: Any) -> httpx.Response:
    sent = {"prompt": "a handwritten seven", "num_inference_steps": 1} | body
    return httpx.post(f"{url}/v1/images/generations", json=sent, timeout=TIMEOUT_S)


def sides(size: str) -> tuple[int, int]:
    width, height = size.split("x")
    return int(width), int(height)


@pytest.mark.parametrize(
    ("entry", "step"), [("pictures", 8), ("flux", 4), ("guided", 16), ("edits", 128)]
)
def test_the_nearest_size_that_is_named_works(
    tiny_server: TinyServer, tiny_gateway: str, entry: str, step: int
) -> None:
    """`edits` makes its pictures smaller without a word: what it made is named, which works."""
    tiny_server.load(entry)
    body = {"model": entry} | ({"image": url_of(draw_picture(1, 48))} if entry == "edits" else {})
    for size in ODD if entry != "edits" else ("100x65",):
        if all(side % step == 0 for side in sides(size)):
            continue
        error = error_in(post(tiny_gateway, size=size, **body))
        assert error["param"] == "size"
        if size == "1x1" and not NEAREST.search(error["message"]):
            assert "send a larger size" in error["message"]
            continue
        near = NEAREST.search(error["message"])
        assert near is not None, error["message"]
        asked, named = sides(size), sides(near[1])
        assert all(abs(n - a) <= step / 2 or n == step for a, n in zip(asked, named, strict=True))
        if min(named) >= 16:
            response = post(tiny_gateway, size=near[1], **body)
            assert pictures_in(response)[0].shape == (named[1], named[0], 3)


def test_what_was_learned_is_refused_without_work(demo_server: Server) -> None:
    with (
        DiffusersClient(demo_server.grpc_url, model="demo") as client,
        serve_gateway(demo_server.grpc_url) as url,
    ):

        def calls() -> int:
            """How often the model ran, as Triton counts it."""
            text = httpx.get(f"http://{demo_server.metrics_url}/metrics").text
            found = re.search(r'nv_inference_request_success\{model="demo".*\} (\d+)', text)
            return int(found[1]) if found else 0

        client.generate(prompt="x", num_inference_steps=1)
        before = calls()
        first = error_in(post(url, size="60x60"))
        assert "Nearest size: 64x64." in first["message"]
        assert calls() == before + 1
        assert error_in(post(url, size="60x60")) == first
        assert "Nearest size: 96x64." in error_in(post(url, size="100x64"))["message"]
        assert "Nearest size: 16x16." in error_in(post(url, size="1x7"))["message"]
        assert calls() == before + 1
        assert pictures_in(post(url, size="64x48"))[0].shape == (48, 64, 3)
        assert calls() == before + 2


def test_a_size_too_small_for_the_layers_is_no_failure_of_the_server(demo_server: Server) -> None:
    with serve_gateway(demo_server.grpc_url) as url:
        error = error_in(post(url, size="8x8"))
    assert error["param"] == "size"
    assert "send a larger size" in error["message"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("big", "send 'WIDTHxHEIGHT'"),
        ("0x0", "at least 1"),
        ("99999x64", "at most"),
        ("999999x64", "send 'WIDTHxHEIGHT'"),
        ("64x", "send 'WIDTHxHEIGHT'"),
        ("", "send 'WIDTHxHEIGHT'"),
    ],
)
def test_what_is_no_size_is_refused(gateway: str, size: str, text: str) -> None:
    error_in(post(gateway, size="60x60"))  # which teaches the step of the model's sizes
    error = error_in(post(gateway, size=size))
    assert error["param"] == "size"
    assert text in error["message"]


@pytest.mark.parametrize("given", [{}, {"size": "auto"}, {"size": " 64X64 "}])
def test_auto_is_the_models_own_size(gateway: str, given: dict[str, str]) -> None:
    assert pictures_in(post(gateway, **given))[0].shape == (64, 64, 3)


def test_size_and_sides_that_disagree_are_refused(gateway: str) -> None:
    error = error_in(post(gateway, size="64x64", width=32))
    assert "size and width disagree" in error["message"]
