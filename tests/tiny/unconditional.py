# SPDX-License-Identifier: Apache-2.0
"""Pictures from nothing or from a class number."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.entry import describe, make_parts
from tests.tiny.weights import build_model


def unet(**changes: Any) -> Any:
    config = {
        **{"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1},
        **{"norm_num_groups": 2, "attention_head_dim": 4},
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return build_model("UNet2DModel", 80, **(config | changes))


def _ddpm_components() -> dict[str, Any]:
    from diffusers import DDPMScheduler

    return make_parts(unet=unet, scheduler=DDPMScheduler)


def _ddim_components() -> dict[str, Any]:
    from diffusers import DDIMScheduler

    return make_parts(unet=unet, scheduler=DDIMScheduler)


def _consistency_components() -> dict[str, Any]:
    from diffusers import CMStochasticIterativeScheduler

    return make_parts(
        unet=partial(unet, num_class_embeds=10),
        scheduler=partial(CMStochasticIterativeScheduler, num_train_timesteps=40),
    )


PIPELINES = (
    describe(
        "ddpm DDPMPipeline unconditional",
        _ddpm_components,
        lambda: {"batch_size": 2, "num_inference_steps": 2},
    ),
    describe(
        "ddim DDIMPipeline unconditional",
        _ddim_components,
        lambda: {"batch_size": 2, "num_inference_steps": 2, "eta": 0.5},
    ),
    describe(
        "consistency-model ConsistencyModelPipeline class-to-image",
        _consistency_components,
        lambda: {"batch_size": 2, "class_labels": [3, 5], "num_inference_steps": 2},
    ),
)
