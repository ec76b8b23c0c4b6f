# SPDX-License-Identifier: Apache-2.0
"""Every way in which a model cannot be had says so in one line, and leaves nothing in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.pipeline.small_hub import small_hub

FLUX = {"pipeline_class": "FluxPipeline"}
HUB: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gated": ({"model": "gated/x"}, ("is gated", "accept its licence on http", "HF_TOKEN")),
    "private": ({"model": "missing/x"}, ("not on the hub", "private", "HF_TOKEN")),
    "unknown": ({"model": "nobody/x"}, ("'nobody/x' is not on the hub", "parameter 'model'")),
    "forbidden": ({"model": "forbidden/x"}, ("refuses", "HTTP 403", "HF_TOKEN")),
    "broken": ({"model": "broken/x"}, ("it answers HTTP 500", "hf download broken/x")),
    "revision": (
        {"model": "tiny/ddpm", "revision": "v9"},
        ("no revision 'v9'", "parameter 'revision'", "tiny/ddpm"),
    ),
    "variant": ({"model": "tiny/ddpm", "variant": "fp16"}, ("variant=fp16", "'variant'", "remove")),
    "fp16-only": (
        {"model": "tiny/fp16"},
        ("component 'unet'", "if all its files are such as model.fp16", "set parameter 'variant'"),
    ),
    "disk": ({"model": "tiny/ddpm", "file_limit": 20_000}, ("disk of", "is full", "HF_HOME")),
}
OFFLINE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "offline": (
        {"model": "tiny/other"},
        ("HF_HUB_OFFLINE is set", "hf download tiny/other", "local folder"),
    ),
    "half-cached": (
        {"model": "tiny/half"},
        ("does not load", "incomplete", "hf download tiny/half"),
    ),
}
LOCAL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "variant": (
        {"model": "fp16-only", "variant": "bf16", **FLUX},
        ("model.bf16.safetensors", "it has: fp16", "parameter 'variant'"),
    ),
    "no-variant-named": (
        {"model": "fp16-only", **FLUX},
        ("has weights of variant fp16 only: set variant to fp16",),
    ),
    "no-variant": (
        {"model": "whole", "variant": "fp16", **FLUX},
        ("model.fp16.safetensors", "it has no variants", "remove it"),
    ),
    "no-safetensors": (
        {"model": "pickled", "diffusers_load_kwargs": {"use_safetensors": True}, **FLUX},
        ("safetensors", "remove use_safetensors"),
    ),
    "last-component-cut": (
        {"model": "cut", **FLUX},
        ("component 'transformer'", "incomplete or damaged", "download it again"),
    ),
    "text-encoder-cut": (
        {"model": "cut-encoder", **FLUX},
        ("component 'text_encoder_2'", "incomplete or damaged", "download it again"),
    ),
    "memory": (
        {"model": "large", "dtype": "bfloat16", "memory_limit": 70 << 20},
        ("component 'unet'", "does not fit the host's memory"),
    ),
}


def run(cases: dict[str, Any], **environment: str) -> dict[str, dict[str, Any]]:
    told = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.failing_loads", json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return dict(json.loads(told.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("load-errors")


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    cases = {name: case for name, (case, _) in HUB.items()}
    fp16 = tiny.save("ddpm", folder / "fp16")
    for file in fp16.rglob("*.safetensors"):
        file.rename(file.with_suffix(".fp16.safetensors"))
    with small_hub({"tiny/ddpm": tiny.save("ddpm", folder), "tiny/fp16": fp16}) as url:
        yield run(cases, HF_ENDPOINT=url, HF_HOME=str(folder / "hf"), HF_HUB_OFFLINE="0")


@pytest.fixture(scope="module")
def offline(folder: Path) -> dict[str, dict[str, Any]]:
    half = folder / "offline" / "hub" / "models--tiny--half"
    snapshot = half / "snapshots" / ("0" * 40)
    (half / "refs").mkdir(parents=True)
    (half / "refs" / "main").write_text("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(tiny.save("ddpm", folder / "half") / "model_index.json", snapshot)
    cases = {name: case for name, (case, _) in OFFLINE.items()}
    return run(cases, HF_HOME=str(folder / "offline"), HF_HUB_OFFLINE="1")


@pytest.fixture(scope="module")
def local(folder: Path) -> dict[str, dict[str, Any]]:
    save_models(folder / "models")
    cases = {
        name: {**case, "model": str(folder / "models" / case["model"])}
        for name, (case, _) in LOCAL.items()
    }
    return run(cases)


def save_models(folder: Path) -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    pipeline: Any = tiny.TINY["flux"].build()
    pipeline.save_pretrained(folder / "whole")
    pipeline.save_pretrained(folder / "fp16-only", variant="fp16")
    pipeline.save_pretrained(folder / "pickled", safe_serialization=False)
    pipeline.save_pretrained(folder / "cut", max_shard_size="10KB")
    last = max((folder / "cut" / "transformer").glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-100])
    pipeline.save_pretrained(folder / "cut-encoder")
    encoder = folder / "cut-encoder" / "text_encoder_2" / "model.safetensors"
    encoder.write_bytes(encoder.read_bytes()[:-100])
    sizes = {"layers_per_block": 2, "norm_num_groups": 8, "block_out_channels": (256, 512)}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet = UNet2DModel(sample_size=8, **sizes, **blocks)
    assert unet.num_parameters() * 2 > 60 << 20
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(folder / "large", max_shard_size="60MB")


def check(result: dict[str, Any], words: tuple[str, ...]) -> None:
    for word in words:
        assert word in result["text"]
    assert "\n" not in result["text"]
    assert "Traceback" not in result["text"]
    assert result["left"] == 0


@pytest.mark.parametrize("name", HUB)
def test_hub(hub: dict[str, dict[str, Any]], name: str) -> None:
    check(hub[name], HUB[name][1])


@pytest.mark.parametrize("name", OFFLINE)
def test_offline(offline: dict[str, dict[str, Any]], name: str) -> None:
    check(offline[name], OFFLINE[name][1])


@pytest.mark.parametrize("name", LOCAL)
def test_local(local: dict[str, dict[str, Any]], name: str) -> None:
    check(local[name], LOCAL[name][1])


def test_something_had_been_loaded_before_it_failed(local: dict[str, dict[str, Any]]) -> None:
    assert local["last-component-cut"]["made"] > 0
    assert local["memory"]["made"] > 0
