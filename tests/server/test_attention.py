# SPDX-License-Identifier: Apache-2.0
"""Attention backends on a real tritonserver: what is used and what was tried stands in `info`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.tritonserver.server import Server
from tests.server.entries import add_entry, load_all, unload_all
from tests.server.wire import PROTOCOLS, connect, infer
from tests.tiny import save

pytest_plugins = ("tests.server.small_server",)

BACKENDS = {
    "attention-native": "native",
    "attention-auto": "auto",
    "attention-list": "FLASH_ATTN,_native_math",
    "attention-sage": "SAGE_ATTN",
}
CALL = {"prompt": "a red fox", "seed": 3}
SIZE = {"height": 32, "width": 32, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def model(shared_folder: Path) -> Path:
    return save("qwen-image", shared_folder / "models")


@pytest.fixture(scope="module")
def served(small_server: Server, shared_folder: Path, model: Path) -> Iterator[Server]:
    """The shared server with one entry per choice of a backend."""
    for name, backend in BACKENDS.items():
        _add(shared_folder, model, name, backend)
    load_all(small_server, list(BACKENDS))
    yield small_server
    unload_all(small_server, BACKENDS)


def _add(folder: Path, model: Path, name: str, backend: str, *options: str) -> None:
    call = ("--diffusers-call-kwargs", json.dumps(SIZE), "--device", "cpu", "--force")
    backends = ("--attention-backend", backend)
    add_entry(folder / "repository", name, model, *call, *backends, *options)


def _warnings(told: dict[str, Any]) -> list[str]:
    """Those of attention; Qwen-Image has one about its guidance."""
    return [text for text in told["warnings"] if "attention" in text]


def _ask(server: Server, protocol: str, entry: str) -> tuple[np.ndarray, dict[str, Any]]:
    with connect(server, protocol) as client:
        answer = infer(client, protocol, entry, CALL)
    return answer["images"], json.loads(answer["info"][0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_native_and_auto_are_plain_diffusers_on_a_cpu(served: Server, protocol: str) -> None:
    native, told = _ask(served, protocol, "attention-native")
    assert told["attention_backend"] == "native"
    auto, told = _ask(served, protocol, "attention-auto")
    assert told["attention_backend"] == "native"
    assert _warnings(told) == []
    assert np.array_equal(native, auto)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_kernel_that_takes_no_mask_serves_calls_without_one(
    served: Server, protocol: str
) -> None:
    native, _ = _ask(served, protocol, "attention-native")
    images, told = _ask(served, protocol, "attention-list")
    assert told["attention_backend"] == "_native_flash, native with masks"
    assert "attention_attempts" not in told
    assert _warnings(told) == []
    assert np.abs(images.astype(int) - native).max() <= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_falling_back_is_a_warning(served: Server, protocol: str) -> None:
    native, _ = _ask(served, protocol, "attention-native")
    images, told = _ask(served, protocol, "attention-sage")
    assert told["attention_backend"] == "native"
    assert {a["backend"] for a in told["attention_attempts"]} >= {"sage_hub", "sage"}
    (warning,) = _warnings(told)
    assert warning.startswith("attention_backend 'SAGE_ATTN' is not usable here for transformer: ")
    assert np.array_equal(images, native)


def test_the_log_says_it_once(served: Server) -> None:
    assert served.log is not None
    lines = [line for line in served.log.read_text().splitlines() if "attention-list" in line]
    assert sum("attention _native_flash, native with masks" in line for line in lines) == 1
    assert not any("experimental" in line for line in lines)
