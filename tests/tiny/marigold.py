# SPDX-License-Identifier: Apache-2.0
"""Marigold: depth and the like of a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.entry import describe
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import ddim


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        "unet": partial(stable_diffusion.unet, in_channels=8),
        "scheduler": partial(ddim, prediction_type="v_prediction", timestep_spacing="trailing"),
    }
    return stable_diffusion.bare_components(**(parts | changes))


def _inputs(**changes: Any) -> dict[str, Any]:
    return {
        "image": draw_picture(7, 48, 32),
        "num_inference_steps": 2,
        "processing_resolution": 0,
    } | changes


PIPELINES = (
    describe(
        "marigold-depth MarigoldDepthPipeline depth",
        partial(_components, prediction_type="depth"),
        partial(_inputs, output_uncertainty=True, ensemble_size=3),
    ),
    describe(
        "marigold-normals MarigoldNormalsPipeline normals",
        partial(_components, prediction_type="normals"),
        _inputs,
    ),
    describe(
        "marigold-intrinsics MarigoldIntrinsicsPipeline albedo-and-material",
        partial(
            _components,
            prediction_type="intrinsics",
            unet=partial(stable_diffusion.unet, in_channels=12, out_channels=8),
            target_properties={"target_names": ["albedo", "material"]},
        ),
        _inputs,
    ),
)
