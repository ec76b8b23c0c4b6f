# SPDX-License-Identifier: Apache-2.0
"""Load-time options on a real tritonserver: written by add-model, answered over HTTP and gRPC."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder import main as builder
from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server, start_server
from tests.parity.fresh import call_fresh
from tests.server.entries import add_entry, load_all
from tests.tiny import load_options
from triton_diffusers.client import DiffusersClient

CALL = json.dumps({"height": 32, "width": 32, "num_inference_steps": 2})
INPUTS = {"prompt": "a boat", "seed": 3}
OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "changed": (
        *("--scheduler", '{"class": "EulerDiscreteScheduler"}'),
        *("--lora", '[{"path": "MODELS/lora", "scale": 0.5}]'),
        *("--layerwise-casting", "float8_e4m3fn"),
    ),
    "compiled": ("--torch-compile", "regional", "--warmup", "32x32"),
    "own": ("--custom-pipeline", "MODELS/code"),
}
"""Entry -> options of add-model for the tiny Stable Diffusion."""
SAME = {"own": 0, "compiled": 1}
"""Entries that draw what `plain` draws, and by how much a pixel may differ."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("load-options")


@pytest.fixture(scope="module")
def repository(folder: Path) -> Path:
    models = folder / "models"
    call_fresh(load_options.write, models)
    written = folder / "repository"
    for name, options in OPTIONS.items():
        words = [word.replace("MODELS", str(models)) for word in options]
        model = models / "stable-diffusion"
        add_entry(written, name, model, "--diffusers-call-kwargs", CALL, *words)
    file = ["--pipeline-class", "StableDiffusionPipeline", "--diffusers-call-kwargs", CALL]
    config = ["--diffusers-load-kwargs", json.dumps({"config": str(models / "stable-diffusion")})]
    add_entry(written, "file", models / "one.safetensors", *file, *config)
    inside = ["--subfolder", "stable-diffusion", "--pipeline-class", "StableDiffusionPipeline"]
    inside += ["--use-safetensors", "--device", "cpu"]
    add_entry(written, "inside", models, *inside, "--diffusers-call-kwargs", CALL)
    return written


@pytest.fixture(scope="module")
def server(folder: Path, repository: Path) -> Iterator[Server]:
    with start_server(repository, log=folder / "server.log", exit_timeout_s=0) as running:
        load_all(running, [*OPTIONS, "file", "inside"])
        yield running


def _draw(server: Server, entry: str, protocol: str = "grpc") -> Any:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with DiffusersClient(url, model=entry, protocol=protocol) as client:
        return client.generate(**INPUTS)


@pytest.fixture(scope="module")
def plain(server: Server) -> np.ndarray:
    return _draw(server, "plain").arrays["images"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("entry", [*OPTIONS, "file", "inside"])
def test_each_option_is_served(
    server: Server, plain: np.ndarray, entry: str, protocol: str
) -> None:
    images = _draw(server, entry, protocol).arrays["images"]
    assert images.shape == plain.shape
    assert images.std() > 0
    furthest = int(np.abs(images.astype(int) - plain).max())
    if entry in ("plain", "file", "inside", *SAME):
        assert furthest <= SAME.get(entry, 0)
    else:
        assert furthest > 0


def test_info_and_log_tell_what_the_options_came_to(server: Server) -> None:
    facts = (
        ("changed", "lora_layers", {"lora_0": 16}, "; lora layers lora_0 16"),
        ("changed", "layerwise_casting", ["unet"], "; layerwise casting unet"),
        ("changed", "scheduler", "EulerDiscreteScheduler", "; scheduler EulerDiscreteScheduler"),
        ("compiled", "compiled", ["unet"], "; compiled unet"),
    )
    log = server.log.read_text()
    for entry, name, value, words in facts:
        assert _draw(server, entry).info[name] == value
        line = next(x for x in log.splitlines() if f"{entry}: loaded in " in x)
        assert " MiB, float32, on cpu; attention native; " in line
        assert words in line
    assert "compiled: warm-up call 1: {'width': 32, 'height': 32}" in log
    assert re.search(r"changed: trying .*'lora'.* with one small call", log)


REFUSED = {
    "mapped": (("--device-map", "balanced"), "parameter 'device_map': 'cuda' is not there"),
    "cannot-run": (
        ("--scheduler", "FlowMatchEulerDiscreteScheduler"),
        "with 'scheduler' a small call fails",
    ),
}
"""Entries that builder writes and only a load can refuse."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_a_load_can_tell(server: Server, repository: Path, name: str) -> None:
    options, words = REFUSED[name]
    add_entry(repository, name, repository.parent / "models" / "stable-diffusion", *options)
    with pytest.raises(ServerError, match=words):
        server.load(name, timeout_s=120)
    log = server.log.read_text()
    assert any(f"{name}: " in line and re.search(words, line) for line in log.splitlines())
    assert _draw(server, "plain").arrays["images"].shape == (1, 32, 32, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device-map", "balanced", "--gpus", "0"), "--device-map places one copy itself"),
        (("--enable-cpu-offload", "--device-map", "balanced"), "both place the weights"),
        (("--lora", "nothing"), "does not exist"),
        (("--scheduler", "Eulr"), "is not known to diffusers"),
        (("--custom-pipeline", "community"), "set trust_remote_code"),
        (("--warmup", "big"), "'big' is no size"),
        (("--attention-backend", "CUDNN_ATTN"), "_native_cudnn"),
    ],
)
def test_what_builder_refuses_at_once(
    repository: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    model = str(repository.parent / "models" / "stable-diffusion")
    command = ["add-model", model, "--name", "x", "--repository", str(repository), *options]
    assert builder.main(command) == 1
    said = capsys.readouterr().err
    assert words in said
    assert not (repository / "x").exists()
