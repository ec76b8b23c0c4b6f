# SPDX-License-Identifier: Apache-2.0
"""Calls of real pipelines through the runtime, without a server: what one leaves for the next."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.tiny import save
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import CancelledError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import entry_inputs, read_signature
from triton_diffusers.running.run import run_call


def _load(name: str, folder: Path) -> LoadedPipeline:
    return load_pipeline(ServeConfig(model=str(save(name, folder / name))), folder, "cpu")


def _run(loaded: LoadedPipeline, stop: bool = False, **inputs: Any) -> np.ndarray:
    def on_step(done: int, total: int) -> None:
        if stop:
            raise CancelledError("the request was cancelled")

    tensors = {n: np.atleast_1d(np.array(_encoded(v))) for n, v in inputs.items()}
    return run_call(read_call(tensors, loaded), loaded, on_step)["images"]


def _encoded(value: Any) -> Any:
    return np.array([value.encode()], np.object_) if isinstance(value, str) else value


def test_a_cancelled_call_leaves_the_denoiser_as_it_was(tmp_path: Path) -> None:
    """Perturbed-attention pipelines set attention processors and reset them only at their end."""
    loaded = _load("stable-diffusion-pag", tmp_path)
    plain = {"prompt": "a", "height": 32, "width": 32, "num_inference_steps": 2, "seed": 1}
    before = _run(loaded, **plain, pag_scale=0.0)
    with pytest.raises(CancelledError):
        _run(loaded, stop=True, **plain, pag_scale=3.0)
    assert np.array_equal(_run(loaded, **plain, pag_scale=0.0), before)


def test_a_file_with_alpha_is_the_same_picture_where_alpha_counts(tmp_path: Path) -> None:
    loaded = _load("qwen-image-layered", tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[0]).save(file, "PNG")
    call = {"prompt": "a", "layers": 2, "num_inference_steps": 1, "resolution": 640, "seed": 1}
    as_tensor = _run(loaded, image=pixels, **call)
    assert as_tensor.ndim == 4
    files = np.array([file.getvalue()], np.object_)
    assert np.array_equal(_run(loaded, image_bytes=files, **call), as_tensor)


def test_easy_animate_gets_its_own_kind_of_tensor() -> None:
    import diffusers

    signature = read_signature(diffusers.EasyAnimateInpaintPipeline)
    frames = [Image.new("RGB", (8, 6), "white")] * 5
    for name, shape, largest in (
        ("video", (1, 3, 5, 6, 8), 1),
        ("mask_video", (1, 1, 5, 6, 8), 255),
    ):
        parameter = signature.parameters[name]
        assert parameter.as_tensor
        assert parameter.video_tensor is not None
        tensor = parameter.video_tensor(name, frames)
        assert tuple(tensor.shape) == shape
        assert float(tensor.max()) == largest
    assert "video" in {t.name for t in entry_inputs(signature)}
