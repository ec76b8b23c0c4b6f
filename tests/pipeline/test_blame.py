# SPDX-License-Identifier: Apache-2.0
"""Calls that fail: what the caller sent is refused in words that help, other faults stay faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import load_tiny
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.run import run_call

SD, NETS, KONTEXT = "stable-diffusion", "stable-diffusion-two-controlnets", "flux-kontext"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _run(loaded: LoadedPipeline, **inputs: Any) -> np.ndarray:
    given = {"prompt": "a", "num_inference_steps": 2, "seed": 1} | inputs
    tensors = {
        n: v if isinstance(v, np.ndarray) else np.array(_wire(v)).reshape(-1)
        for n, v in given.items()
    }
    return run_call(read_call(tensors, loaded), loaded, lambda done, total: None)["images"]


def _wire(value: Any) -> Any:
    if isinstance(value, dict):
        value = json.dumps(value)
    return np.array(value.encode(), np.object_) if isinstance(value, str) else value


def _files(*sizes: tuple[int, int]) -> np.ndarray:
    import io

    from PIL import Image

    found = []
    for size in sizes:
        file = io.BytesIO()
        Image.new("RGB", size, "white").save(file, "PNG")
        found.append(file.getvalue())
    return np.array(found, np.object_)


SMALL = {"height": 32, "width": 32}
UNEVEN = _files((32, 32), (64, 48))
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "out of range": (SD, SMALL | {"clip_skip": 50}, r"'clip_skip' \(50\)"),
    "null": (SD, SMALL | {"extra": {"guidance_scale": None}}, "null as 'guidance_scale'"),
    "null count": (SD, SMALL | {"extra": {"num_inference_steps": None}}, "num_inference_steps"),
    "sizes": (NETS, {"image_bytes": UNEVEN}, "32x32 and 64x48.*; send height and width, or pict"),
    "three scales": (
        NETS,
        SMALL | {"image_bytes": UNEVEN, "controlnet_conditioning_scale": np.array([0.5, 1, 7])},
        "3 elements for 2 controlnets; send one, or one per controlnet",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_caller_sent_is_refused(models: Path, case: str) -> None:
    model, inputs, words = REFUSED[case]
    loaded = load_tiny(models, model)
    with pytest.raises(RequestError, match=words):
        _run(loaded, **inputs)
    pair = {} if model == SD else {"image_bytes": UNEVEN}
    assert _run(loaded, **SMALL, **pair).shape == (1, 32, 32, 3)


def test_a_tiny_picture_for_kontext(models: Path) -> None:
    loaded = load_tiny(models, KONTEXT)
    with pytest.raises(RequestError):
        _run(loaded, height=1, width=1, image=np.zeros((1, 32, 32, 3), np.uint8))


@pytest.mark.parametrize(
    "fault",
    [RuntimeError("the denoiser fails"), RuntimeError("CUDA error: an illegal memory access")],
    ids=str,
)
def test_a_fault_of_the_model_stays_one(models: Path, fault: Exception) -> None:
    loaded = load_tiny(models, SD)

    def fail(module: Any, args: Any, output: Any) -> None:
        raise fault

    loaded.pipeline.unet.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match=str(fault)):
        _run(loaded, **SMALL, clip_skip=1)


def test_what_fails_with_every_call_is_no_callers(models: Path) -> None:
    loaded = load_tiny(models, SD)
    loaded.pipeline.tokenizer = None
    with pytest.raises(AttributeError):
        _run(loaded, **SMALL, clip_skip=1)
    assert loaded.has_worked == [False]
