# SPDX-License-Identifier: Apache-2.0
"""Quantized entries on a real tritonserver: the same pictures as plain diffusers with torchao."""

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

TORCHAO = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "int8_weight_only": "Int8WeightOnlyConfig",
    "fp8_weight_only": "Float8WeightOnlyConfig",
}
NATIVE = {
    "quantization_config": {
        "quant_mapping": {
            "transformer": {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}
        }
    }
}
CALL = {"prompt": "a red fox", "seed": 3}
SIZE = {"height": 32, "width": 32, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def model(shared_folder: Path) -> Path:
    return save("flux", shared_folder / "models")


@pytest.fixture(scope="module")
def served(small_server: Server, shared_folder: Path, model: Path) -> Iterator[Server]:
    """The shared server with one entry per method that runs on a CPU, and one in native form."""
    repository = shared_folder / "repository"
    call = ("--diffusers-call-kwargs", json.dumps(SIZE), "--device", "cpu")
    for method in TORCHAO:
        add_entry(repository, method, model, *call, "--quantization-config", method)
    native = ("--diffusers-load-kwargs", json.dumps(NATIVE))
    both = ("--quantization-config", json.dumps({"method": "fp8"}))
    add_entry(repository, "native", model, *call, *native, *both)
    names = [*TORCHAO, "native"]
    load_all(small_server, names)
    yield small_server
    unload_all(small_server, names)


def _plain(model: Path, config_class: str) -> np.ndarray:
    """What diffusers draws by itself with torchao's config of that name."""
    import torch
    import torchao.quantization
    from diffusers import FluxPipeline, PipelineQuantizationConfig, TorchAoConfig

    torchao_config = TorchAoConfig(getattr(torchao.quantization, config_class)())
    config = PipelineQuantizationConfig(quant_mapping={"transformer": torchao_config})
    pipeline = FluxPipeline.from_pretrained(model, dtype=torch.float32, quantization_config=config)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(3)
    pictures = pipeline("a red fox", generator=generator, output_type="np", **SIZE).images
    drawn: np.ndarray = np.round(255 * pictures).astype(np.uint8)
    return drawn


def _ask(server: Server, protocol: str, entry: str) -> tuple[np.ndarray, dict[str, Any]]:
    with connect(server, protocol) as client:
        answer = infer(client, protocol, entry, CALL)
    return answer["images"], json.loads(answer["info"][0])


@pytest.mark.parametrize("method", TORCHAO)
def test_entries_draw_what_diffusers_draws(served: Server, model: Path, method: str) -> None:
    expected = _plain(model, TORCHAO[method])
    for protocol in PROTOCOLS:
        images, info = _ask(served, protocol, method)
        assert np.array_equal(images, expected)
        told = info["quantization"]
        assert told["method"] == f"{method} (torchao {TORCHAO[method]})"
        assert told["transformer"]["bytes"] < told["transformer"]["bytes_before"]
        assert any("torch_compile" in text for text in info["warnings"]) == (method == "int8")


def test_the_native_form_wins_and_says_so(served: Server, model: Path) -> None:
    expected = _plain(model, "Int8WeightOnlyConfig")
    for protocol in PROTOCOLS:
        images, info = _ask(served, protocol, "native")
        assert np.array_equal(images, expected)
        assert info["quantization"]["method"] == "torchao Int8WeightOnlyConfig"
        assert any("diffusers_load_kwargs.quantization_config wins" in w for w in info["warnings"])


def test_the_log_is_readable(served: Server) -> None:
    assert served.log is not None
    log = served.log.read_text()
    assert "torch_compile" in log
    for noise in ("You are trying to set torch_dtype", "Failed to load", "safe_globals"):
        assert noise not in log
