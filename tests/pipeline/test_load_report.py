# SPDX-License-Identifier: Apache-2.0
"""What a load took, on real tiny pipelines; fails loudly when diffusers words its log otherwise."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.calls_counted import ONCE, counted
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.loading.report import LOADER, LoadReport, tensor_bytes, timed_loading
from triton_diffusers.loading.weights import load_watched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("flux", tmp_path_factory.mktemp("report"))


def load(folder: Path, **kwargs: Any) -> tuple[Any, LoadReport, list[str]]:
    import diffusers

    lines: list[str] = []
    index = json.loads((folder / "model_index.json").read_text())
    pipeline, report, notes = load_watched(
        diffusers.FluxPipeline, folder, index, kwargs, lines.append, stays_on_cpu=True
    )
    assert notes == []
    return pipeline, report, lines


def test_every_component_has_its_seconds_and_bytes(folder: Path) -> None:
    import torch

    pipeline, report, lines = load(folder, dtype=torch.bfloat16)
    assert {c.name for c in report.components} == {
        name for name, part in pipeline.components.items() if part is not None
    }
    assert all(c.seconds > 0 for c in report.components)
    assert sum(c.seconds for c in report.components) <= report.seconds
    transformer = next(c for c in report.components if c.name == "transformer")
    assert transformer.class_name == "FluxTransformer2DModel"
    assert transformer.bytes == sum(p.nbytes for p in pipeline.transformer.state_dict().values())
    assert transformer.dtype == "bfloat16"
    assert report.bytes == sum(c.bytes for c in report.components)
    assert [c.bytes for c in report.components] == sorted(
        (c.bytes for c in report.components), reverse=True
    )
    assert lines == []  # nothing for a load that is done in two seconds


@pytest.mark.parametrize(
    "options",
    [{}, {"vae_use_slicing": True, "quantization_config": "int8_weight_only", "warmup": "32x32"}],
    ids=["plain", "options"],
)
def test_what_a_load_asks_for_is_found_once(folder: Path, options: dict[str, Any]) -> None:
    with counted(*ONCE) as calls:
        loaded = load_pipeline(ServeConfig(model=str(folder), **options), folder, "cpu")
    assert calls == dict.fromkeys(calls, 1)
    assert ("quantization" in loaded.facts) == bool(options)


def test_info_is_json(folder: Path) -> None:
    _, report, _ = load(folder)
    told = json.loads(json.dumps(report.as_json()))
    assert told["bytes"] == report.bytes
    assert told["components"]["vae"]["class"] == "AutoencoderKL"
    assert told["components"]["tokenizer"]["bytes"] == 0


def test_a_component_that_was_handed_over_took_no_time(folder: Path) -> None:
    pipeline, _, _ = load(folder)
    _, report, _ = load(folder, vae=pipeline.vae)
    vae = next(c for c in report.components if c.name == "vae")
    assert vae.seconds == 0.0
    assert vae.bytes > 0


def test_the_log_of_diffusers_is_as_before(folder: Path) -> None:
    logger = logging.getLogger(LOADER)
    passed: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: passed.append(record.getMessage())
    logger.addHandler(handler)
    before = (logger.level, list(logger.filters))
    try:
        load(folder)
    finally:
        logger.removeHandler(handler)
    assert (logger.level, list(logger.filters)) == before
    assert not [text for text in passed if text.startswith("Loaded ")]


def test_a_load_that_fails_leaves_nothing_behind(folder: Path) -> None:
    logger = logging.getLogger(LOADER)
    before = (logger.level, list(logger.filters))
    with pytest.raises(ValueError, match="mine"), timed_loading():
        raise ValueError("mine")
    assert (logger.level, list(logger.filters)) == before


def test_tied_weights_count_once() -> None:
    import torch

    from triton_diffusers.loading.report import describe

    layer = torch.nn.Linear(8, 8, bias=False)
    other = torch.nn.Linear(8, 8, bias=False)
    other.weight = layer.weight
    model = torch.nn.Sequential(layer, other)
    pipeline = type("Pipeline", (), {"components": {"x": model, "y": None}})()
    assert describe(pipeline, {}, 1.0).bytes == 8 * 8 * 4


def test_quantized_weights_count_what_they_hold() -> None:
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = torch.nn.Linear(64, 64, bias=False)
    quantize_(layer, Int8WeightOnlyConfig())
    assert 64 * 64 <= tensor_bytes(layer.weight) < 2 * 64 * 64


@pytest.mark.parametrize("disable_mmap", [False, True])
def test_shards_load_in_parallel_where_memory_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disable_mmap: bool
) -> None:
    from diffusers.models import model_loading_utils, modeling_utils

    pipeline: Any = tiny.TINY["flux"].build()
    pipeline.save_pretrained(tmp_path, max_shard_size="10KB")
    assert modeling_utils.HF_ENABLE_PARALLEL_LOADING in (True, False)
    monkeypatch.setattr(modeling_utils, "HF_ENABLE_PARALLEL_LOADING", True)
    lines: list[str] = []
    logger = logging.getLogger(model_loading_utils.__name__)
    monkeypatch.setattr(logger, "info", lines.append)
    load(tmp_path, disable_mmap=disable_mmap)
    assert any("in parallel" in line for line in lines) is not disable_mmap
    assert modeling_utils.HF_ENABLE_PARALLEL_LOADING is True


def test_parallel_loading_is_asked_for_before_diffusers_is_imported() -> None:
    ask = "from triton_diffusers.pipelines.classes import ask_for_parallel_loading as ask; ask(); "
    show = "from diffusers.models import modeling_utils as m; print(m.HF_ENABLE_PARALLEL_LOADING)"
    told = subprocess.run([sys.executable, "-c", ask + show], capture_output=True, text=True)
    assert told.stdout.strip() == "True", told.stderr
