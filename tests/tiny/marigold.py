# SPDX-License-Identifier: Apache-2.0
"""Marigold: depth and the like of a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import ddim


def _components(**changes: Any) -> dict[str, Any]:
    parts = stable_diffusion.components(
        unet=partial(stable_diffusion.unet, in_channels=8),
        scheduler=partial(ddim, prediction_type="v_prediction", timestep_spacing="trailing"),
    )
    del parts["safety_checker"], parts["feature_extractor"]
    return make_parts(**(parts | changes))


def _depth_components() -> dict[str, Any]:
    return _components(prediction_type="depth")


def _inputs(**changes: Any) -> dict[str, Any]:
    return {
        "image": draw_picture(7, 48, 32),
        "num_inference_steps": 2,
        "processing_resolution": 0,
        "ensemble_size": 1,
    } | changes


PIPELINES = (
    describe(
        "marigold-depth",
        "MarigoldDepthPipeline",
        "depth",
        _depth_components,
        _inputs,
    ),
)
