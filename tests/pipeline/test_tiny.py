# SPDX-License-Identifier: Apache-2.0
"""Every tiny pipeline survives a reload and gives the same varied result twice."""

from __future__ import annotations

import inspect
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

from tests.tiny import TINY, save

MAX_MIB = 3
LARGE = {"hunyuan-video-15": 20}  # the class fixes the size of one layer


def _to_array(value: object) -> np.ndarray:
    """Whatever a field of a pipeline's output holds, as one float64 array; texts as code points."""
    if isinstance(value, str):
        return np.array([ord(letter) for letter in value], dtype=np.float64)
    if isinstance(value, torch.Tensor):
        return value.to(torch.float64).numpy()
    if isinstance(value, list | tuple):
        return np.stack([_to_array(item) for item in value])
    return np.asarray(value, dtype=np.float64)


def _call(pipeline: DiffusionPipeline, inputs: dict) -> dict[str, np.ndarray]:
    torch.manual_seed(7)
    arguments = {
        key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key, value in inputs.items()
    }
    arguments["generator"] = torch.Generator("cpu").manual_seed(7)
    if "output_type" in inspect.signature(pipeline.__call__).parameters:
        arguments["output_type"] = "np"  # LDM3D's PIL pictures of depth fail with Pillow 13
    output = pipeline(**arguments)
    return {key: _to_array(value) for key, value in output.items() if value is not None}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.parametrize("name", list(TINY))
def test_reloaded_pipeline_repeats_itself(name, tiny_folder):
    tiny = TINY[name]
    folder = save(name, tiny_folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size < LARGE.get(name, MAX_MIB) * 2**20, f"{size / 2**20:.1f} MiB"

    pipeline = DiffusionPipeline.from_pretrained(folder, **tiny.load_kwargs)
    assert type(pipeline).__name__ == tiny.pipeline_class
    pipeline.set_progress_bar_config(disable=True)

    first, second = (_call(pipeline, tiny.inputs()) for _ in range(2))
    assert first.keys() == second.keys()
    for key, array in first.items():
        np.testing.assert_array_equal(array, second[key], err_msg=key)
        assert np.isfinite(array).all(), key
    main = next(iter(first.values()))
    assert main.std() > 0.01 * max(1.0, np.abs(main).max()), "nearly constant"
