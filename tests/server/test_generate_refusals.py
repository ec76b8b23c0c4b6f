# SPDX-License-Identifier: Apache-2.0
"""/generate and raw HTTP: what tritonclient would never send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.tritonserver.server import Server
from tests.server.cases.generate import JSON_CASES, JsonCase
from tests.server.wire import post

pytest_plugins = ("tests.server.small_server",)

GOOD = {"prompt": "a fox", "seed": 1, "output_format": "png", "output_base64": True}


def _good(server: Server) -> str:
    status, text = post(server, "models/pictures/generate", GOOD)
    assert status == 200, text
    return str(json.loads(text)["media"])


@pytest.fixture(scope="module")
def expected(small_server: Server) -> str:
    return _good(small_server)


@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: case.name)
def test_generate_refuses_and_goes_on(small_server: Server, expected: str, case: JsonCase) -> None:
    status, text = post(small_server, f"models/{case.entry}/generate", case.body)
    assert status == 400 or (case.by_triton and status == 500), text
    for word in case.words:
        assert word in json.loads(text)["error"]
    assert _good(small_server) == expected


# No huge shapes in JSON: tritonserver 2.51 itself crashes on them.
RAW: dict[str, Any] = {
    "no-inputs": {"inputs": []},
    "no-object": [],
    "malformed": b"{",
    "shape-without-data": {"inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES"}]},
    "less-data-than-shape": {
        "inputs": [{"name": "prompt", "shape": [3], "datatype": "BYTES", "data": ["a"]}]
    },
    "more-data-than-shape": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a", "b"]}]
    },
    "negative-shape": {
        "inputs": [{"name": "prompt", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]
    },
    "number-for-text": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": [7]}]
    },
    "unknown-datatype": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "TEXT", "data": ["a"]}]
    },
    "input-twice": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a"]}] * 2
    },
    "unknown-output": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
        "outputs": [{"name": "pictures"}],
    },
    "parameter-that-is-an-object": {
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
        "parameters": {"height": {"value": 16}},
    },
}


@pytest.mark.parametrize("name", list(RAW))
def test_raw_infer_refuses_and_goes_on(small_server: Server, expected: str, name: str) -> None:
    status, text = post(small_server, "models/pictures/infer", RAW[name])
    assert status in (400, 500), text
    assert json.loads(text)["error"]
    assert _good(small_server) == expected


@pytest.mark.parametrize("path", ["models/picture/infer", "models/picture/generate"])
def test_an_unknown_model_is_named(small_server: Server, path: str) -> None:
    status, text = post(small_server, path, GOOD)
    assert status in (400, 404)
    assert "picture" in text
