# SPDX-License-Identifier: Apache-2.0
"""A wrong request gets one clear refusal, over HTTP and gRPC alike, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from builder.tritonserver.server import Server
from tests.server import wire
from tests.server.broken_files import picture_array, sound_file
from tests.server.cases import CASES, Case
from tests.server.wire import BAD_STATUS, PROTOCOLS, connect, infer, refusal

pytest_plugins = ("tests.server.small_server",)

LONGEST_MESSAGE = 2000
GOOD: dict[str, dict[str, Any]] = {
    "pictures": {"prompt": "a fox", "seed": 1},
    "edits": {"prompt": "a fox", "image": picture_array(), "seed": 1},
    "clips": {"prompt": "a kite", "video": picture_array(5, side=16), "seed": 1},
    "sounds": {"prompt": "rain", "initial_audio_waveforms_bytes": sound_file("wav"), "seed": 1},
    "shapes": {"seed": 1},
}
MAIN = {"clips": "frames", "sounds": "audios"}


@pytest.fixture(scope="module", params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(small_server: Server, protocol: str) -> Iterator[Any]:
    with connect(small_server, protocol) as plain:
        yield plain


@pytest.fixture(scope="module")
def expected(small_server: Server) -> dict[str, np.ndarray]:
    """What every entry answers to its good request before anything bad came."""
    with connect(small_server, "grpc") as plain:
        return {entry: _answer(plain, "grpc", entry) for entry in GOOD}


def _answer(client: Any, protocol: str, entry: str) -> np.ndarray:
    return infer(client, protocol, entry, GOOD[entry])[MAIN.get(entry, "images")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_request_is_refused_and_the_next_is_served(
    client: Any, protocol: str, expected: dict[str, np.ndarray], case: Case
) -> None:
    options = {"parameters": dict(case.parameters)} if case.parameters else {}
    status, message = refusal(client, protocol, case.entry, case.made_inputs(), **options)
    assert status == BAD_STATUS[protocol], message
    for word in case.words:
        assert word in message, message
    assert len(message) < LONGEST_MESSAGE
    assert "Traceback" not in message
    np.testing.assert_array_equal(_answer(client, protocol, case.entry), expected[case.entry])


def test_an_exception_over_a_callers_value_is_its_callers(
    client: Any, protocol: str, expected: dict[str, np.ndarray]
) -> None:
    inputs = GOOD["pictures"] | {"clip_skip": 50}  # the text encoder has two layers
    status, message = refusal(client, protocol, "pictures", inputs)
    assert status == BAD_STATUS[protocol]
    assert "'clip_skip' (50)" in message
    assert "IndexError: tuple index out of range" in message
    np.testing.assert_array_equal(_answer(client, protocol, "pictures"), expected["pictures"])


UNUSUAL: dict[str, dict[str, Any]] = {
    "empty-prompt": {"prompt": ""},
    "empty-negative": {"prompt": "a", "negative_prompt": ""},
    "control-characters": {"prompt": "a\0b\n\t\u202e"},
    "emoji": {"prompt": "\U0001f98a" * 50},
    "one-empty-of-two": {"prompt": ["", "a"], "negative_prompt": ["b", ""]},
    "largest-seed": {"prompt": "a", "seed": 2**63 - 1},
    "seed-zero": {"prompt": "a", "seed": 0},
    "seed-per-output": {"prompt": ["a", "b"], "seed": [3, 3]},
    "guidance-zero": {"prompt": "a", "guidance_scale": 0.0},
    "guidance-negative": {"prompt": "a", "guidance_scale": -3.0},
    "extra-empty": {"prompt": "a", "extra": "{}"},
    "tensor-format": {"prompt": "a", "output_format": "tensor"},
}


@pytest.mark.parametrize("name", list(UNUSUAL))
def test_unusual_requests_are_served(client: Any, protocol: str, name: str) -> None:
    outputs = infer(client, protocol, "pictures", UNUSUAL[name])
    prompts = UNUSUAL[name]["prompt"]
    count = len(prompts) if isinstance(prompts, list) else 1
    assert outputs["images"].shape == (count, 16, 16, 3)


@pytest.mark.parametrize(
    ("output", "file_format"), [("media", "tensor"), ("images", "png")], ids=["media", "images"]
)
def test_an_output_that_does_not_come_is_an_error(
    client: Any, protocol: str, output: str, file_format: str
) -> None:
    inputs = GOOD["pictures"] | {"output_format": file_format}
    status, message = refusal(client, protocol, "pictures", inputs, wanted=[output])
    assert status == BAD_STATUS[protocol]
    assert output in message
    assert "output_format" in message


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({case.entry for case in CASES}) >= 4
    assert wire.PROTOCOLS == ("http", "grpc")
