# SPDX-License-Identifier: Apache-2.0
"""Tiny pipelines as entries have them loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import TINY, save
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline


def load_tiny(models: Path, name: str, **options: Any) -> LoadedPipeline:
    """Load a tiny pipeline, which is saved below `models` the first time."""
    path = models / name if (models / name).exists() else save(name, models)
    return load_pipeline(ServeConfig(model=str(path), **options), models, "cpu")


def call_inputs(name: str) -> dict[str, Any]:
    """Return the arguments of a quick call, but for sounds."""
    import numpy as np

    return {n: v for n, v in TINY[name].inputs().items() if not isinstance(v, np.ndarray)}
