# SPDX-License-Identifier: Apache-2.0
"""Tiny pipelines as entries have them loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.tiny import TINY, save
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.run import run_call

SMALL = {"height": 32, "width": 32, "num_inference_steps": 2}


def load_tiny(models: Path, name: str, **options: Any) -> LoadedPipeline:
    """Load a tiny pipeline, which is saved below `models` the first time."""
    path = models / name if (models / name).exists() else save(name, models)
    return load_pipeline(ServeConfig(model=str(path), **options), models, "cpu")


def ask(loaded: LoadedPipeline, **inputs: Any) -> dict[str, Any]:
    """Run one request, small unless it says otherwise; return what goes over the wire."""
    import numpy as np

    given = {"prompt": "a red fox", "seed": 1, **SMALL, **inputs}
    tensors = {
        n: np.array([v.encode()], np.object_) if isinstance(v, str) else np.atleast_1d(np.array(v))
        for n, v in given.items()
        if v is not None
    }
    return run_call(read_call(tensors, loaded), loaded, lambda done, total: None)


def draw(loaded: LoadedPipeline, **inputs: Any) -> Any:
    """The same, its pictures or frames."""
    wire = ask(loaded, **inputs)
    return next(wire[name] for name in ("images", "frames") if name in wire)


def read_digits(pipeline: Any) -> list[int]:
    """Return what the demo's ten digits, drawn in one call, are to a classifier.

    It has seen only digits held out from the demo's training.
    """
    import numpy as np
    import torch

    from scripts.train_demo_model import CALL_KWARGS, WORDS, read_ink, shrink

    prompts = [f"a handwritten {word}" for word in WORDS]
    generators = [torch.Generator().manual_seed(1000 + digit) for digit in range(len(WORDS))]
    call = {n: [v] * len(WORDS) if isinstance(v, str) else v for n, v in CALL_KWARGS.items()}
    pictures = pipeline(prompts, generator=generators, **call).images
    named: list[int] = _classifier().predict(shrink(np.stack([*map(read_ink, pictures)]))).tolist()
    return named


@cache
def _classifier() -> Any:
    from scripts.train_demo_model import train_classifier

    return train_classifier()


def call_inputs(name: str) -> dict[str, Any]:
    """Return the arguments of a quick call, but for sounds."""
    import numpy as np

    return {n: v for n, v in TINY[name].inputs().items() if not isinstance(v, np.ndarray)}
