# SPDX-License-Identifier: Apache-2.0
"""Components that are left out: allowed where a call does without them, and told where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import draw, load_tiny
from triton_diffusers.errors import ConfigError

T5 = {"text_encoder_3": None, "tokenizer_3": None}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _emptied(models: Path, names: Any) -> None:
    """Leave components null in a model's index, as save_pretrained() writes it."""
    file = models / "stable-diffusion-3" / "model_index.json"
    index = json.loads(file.read_text())
    file.write_text(json.dumps(index | {name: [None, None] for name in names}))


def test_sd3_without_its_t5_is_plain_diffusers(models: Path) -> None:
    import torch
    from diffusers import DiffusionPipeline

    load_tiny(models, "stable-diffusion-3")
    path = models / "stable-diffusion-3"
    plain = DiffusionPipeline.from_pretrained(path, **T5)
    call = {"height": 32, "width": 32, "num_inference_steps": 2, "output_type": "np"}
    made = plain("a red fox", generator=torch.Generator().manual_seed(1), **call).images
    expected = (np.asarray(made) * 255).round().astype(np.uint8)
    loaded = load_tiny(models, "stable-diffusion-3", diffusers_load_kwargs=T5)
    assert loaded.warnings == ()
    assert np.array_equal(draw(loaded, height=32, width=32, num_inference_steps=2), expected)
    _emptied(models, T5)
    loaded = load_tiny(models, "stable-diffusion-3")
    assert np.array_equal(draw(loaded, height=32, width=32, num_inference_steps=2), expected)


@pytest.mark.parametrize("warmup", [{}, {"warmup": "none"}, {"warmup": "32x32"}], ids=str)
@pytest.mark.parametrize("name", ["vae", "text_encoder", "tokenizer_2"])
def test_what_no_call_does_without_is_named(
    models: Path, name: str, warmup: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match=f"without the component .*'{name}'.* fails.*remove the null"
    ):
        load_tiny(models, "stable-diffusion-3", diffusers_load_kwargs=T5 | {name: None}, **warmup)


@pytest.mark.parametrize("name", ["transformer", "scheduler"])
def test_what_denoises_is_refused_unseen(models: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot do without its component '{name}'"):
        load_tiny(models, "stable-diffusion-3", diffusers_load_kwargs={name: None})
