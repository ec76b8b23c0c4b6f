# SPDX-License-Identifier: Apache-2.0
"""Which weight files are loaded, and what their headers say."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from triton_diffusers.pipelines.weight_files import Weights, choose_files, read_component, variants


def write_safetensors(path: Path, **tensors: tuple[str, list[int]]) -> None:
    header = {n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, (d, s) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(100))


@pytest.mark.parametrize(
    ("files", "variant", "chosen"),
    [
        (["model.safetensors", "model.bin"], None, ["model.safetensors"]),
        (["pytorch_model.bin"], None, ["pytorch_model.bin"]),
        (["model.safetensors", "model.fp16.safetensors"], "fp16", ["model.fp16.safetensors"]),
        (["model.safetensors"], "fp16", ["model.safetensors"]),
        (
            ["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"],
            "fp16",
            ["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"],
        ),
        (
            ["model-00001-of-00001.fp16.safetensors", "model.safetensors"],
            None,
            ["model.safetensors"],
        ),
        (["adapter_model.safetensors", "model.safetensors"], None, ["model.safetensors"]),
        (["odd_name.safetensors"], None, ["odd_name.safetensors"]),
        (["config.json"], None, []),
    ],
)
def test_files_are_chosen_as_from_pretrained_does(
    tmp_path: Path, files: list[str], variant: str | None, chosen: list[str]
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(bytes(10))
    assert [f.name for f in choose_files(tmp_path, variant)] == chosen


def test_whole_and_sharded_weights_count_once(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", a=("F32", [100]))
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", a=("F32", [60]))
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", b=("F32", [40]))
    assert read_component(tmp_path).parameters == 100


def test_counts_by_dtype(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", a=("F16", [2, 5]), b=("F32", []))
    weights = read_component(tmp_path)
    assert weights.counts == (("F16", 10), ("F32", 1))
    assert (weights.parameters, weights.dtypes) == (11, ("F16", "F32"))
    assert read_component(tmp_path / "none") == Weights()


def test_variants_of_a_model(tmp_path: Path) -> None:
    for name in ("unet/model.fp16.safetensors", "vae/model.safetensors", "vae/m.non_ema.bin"):
        write_safetensors(tmp_path / name, a=("F32", [1]))
    assert variants(tmp_path) == {"fp16", "non_ema"}
