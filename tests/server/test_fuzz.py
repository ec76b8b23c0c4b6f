# SPDX-License-Identifier: Apache-2.0
"""Random requests, seeded: each gets exactly one answer in time and the server stays up."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builder.tritonserver.server import Server
from tests.server import broken_files as files
from tests.server.wire import BAD_STATUS, BROKEN_STATUS, PROTOCOLS, connect, infer

pytest_plugins = ("tests.server.small_server",)

ROUNDS = 80
SERVED = "served"
ENTRIES = ("pictures", "edits", "clips", "sounds", "shapes")
LARGE = (2**31, 2**63 - 1, -(2**63), 10**9)
Draw = Callable[[random.Random], Any]


def _integer(rng: random.Random) -> Any:
    usual = rng.choice((1, 2, 3, 8, 16, 24, 0, -1, 7))
    return rng.choice((usual, usual, usual, rng.choice(LARGE)))


def _number(rng: random.Random) -> Any:
    return rng.choice((0.0, 0.5, 1.0, 7.5, -1.0, 1e308, 1e-308, float("nan"), float("inf")))


def _text(rng: random.Random) -> Any:
    return rng.choice(
        ("", "a fox", "\0", "\u202e\U0001f98a", "x" * 300, "{}", "null", b"\xff", "0")
    )


def _bytes(rng: random.Random) -> bytes:
    makers = (
        lambda: files.image_file(rng.choice(("png", "jpeg", "webp", "gif", "bmp", "tiff"))),
        lambda: files.video_file(rng.randint(1, 5), rng.choice(("mp4", "gif"))),
        lambda: files.sound_file(rng.choice(("wav", "flac"))),
        lambda: rng.randbytes(rng.randint(0, 200)),
    )
    content = bytearray(rng.choice(makers)())
    for _ in range(rng.choice((0, 0, 1, 5, 50))):
        if content:
            content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.choice((len(content), len(content), rng.randint(0, len(content))))])


def _pixels(rng: random.Random) -> np.ndarray:
    shape = [rng.choice((0, 1, 2, 5)), rng.choice((1, 16, 32)), rng.choice((1, 16, 32)), 3]
    if rng.random() < 0.3:
        shape[rng.randrange(4)] = rng.choice((0, 1, 2, 4, 5))
    return np.random.default_rng(rng.randrange(99)).integers(0, 256, shape, np.uint8)


def _samples(rng: random.Random) -> np.ndarray:
    samples = np.full((rng.choice((0, 1, 2, 7)), rng.choice((0, 1, 100))), 0.5, np.float32)
    if samples.size and rng.random() < 0.2:
        samples.flat[-1] = rng.choice((np.nan, np.inf, 1e30))
    return samples


DRAWS: dict[str, Draw] = {
    "TYPE_INT64": _integer,
    "TYPE_FP64": _number,
    "TYPE_BOOL": lambda rng: rng.random() < 0.5,
    "TYPE_STRING": _text,
}
NAMED: dict[str, Draw] = {
    "output_format": lambda rng: rng.choice(("png", "jpeg", "webp", "gif", "mp4", "wav", "tensor")),
    "extra": lambda rng: rng.choice(
        ("{}", '{"a": 1}', "[]", "{", '{"cross_attention_kwargs": {}}')
    ),
}


def _draw(rng: random.Random, declared: dict[str, Any]) -> Any:
    name, kind = declared["name"], declared["data_type"]
    if kind == "TYPE_UINT8":
        return _pixels(rng)
    if kind == "TYPE_FP32":
        return _samples(rng)
    draw = _bytes if name.endswith("_bytes") else NAMED.get(name, DRAWS[kind])
    many = declared["dims"] == ["-1"] and rng.random() < 0.3
    value: Any = [draw(rng) for _ in range(rng.randint(1, 3))] if many else draw(rng)
    if rng.random() < 0.05:
        value = rng.choice((1, 0.5, "x", True, np.zeros((1, 1), np.int32)))
    return value


def make_request(rng: random.Random, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = rng.sample(inputs, rng.randint(0, min(6, len(inputs))))
    usual = [i for i in inputs if i["name"] in ("prompt", "image_bytes", "video_bytes")]
    return {i["name"]: _draw(rng, i) for i in (*usual, *chosen)}


def _answer(client: Any, protocol: str, entry: str, request: dict[str, Any]) -> str:
    try:
        infer(client, protocol, entry, request)
    except InferenceServerException as error:
        return str(error.status()) if error.message() else "no message"
    return SERVED


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_random_requests_are_answered(small_server: Server, entry: str, protocol: str) -> None:
    rng = random.Random(f"{entry} {protocol}")
    with connect(small_server, "http") as plain:
        inputs = plain.get_model_config(entry)["input"]
    answers: list[str] = []
    with connect(small_server, protocol) as client:
        for _ in range(ROUNDS):
            request = make_request(rng, inputs)
            answers.append(_answer(client, protocol, entry, request))
        assert client.is_model_ready(entry)
    allowed = {SERVED, BAD_STATUS[protocol], BROKEN_STATUS[protocol]}
    assert set(answers) <= allowed
    assert answers.count(SERVED) < ROUNDS
