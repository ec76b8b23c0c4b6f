# SPDX-License-Identifier: Apache-2.0
"""DeepFloyd IF, which works on pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer


def _unet(**changes: Any) -> Any:
    blocks = {
        **{"in_channels": 3, "out_channels": 6},
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        **{"encoder_hid_dim": WIDTH, "addition_embed_type": "text"},
        **{"addition_embed_type_num_heads": 2, "resnet_time_scale_shift": "scale_shift"},
        "act_fn": "gelu",
    }
    return stable_diffusion.unet(160, **(blocks | changes))


def _scheduler() -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler(
        **{"beta_schedule": "squaredcos_cap_v2", "thresholding": True},
        **{"dynamic_thresholding_ratio": 0.95, "sample_max_value": 1.5},
        variance_type="learned_range",
    )


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"unet": _unet, "scheduler": _scheduler, "text_encoder": t5_encoder},
        **{"tokenizer": partial(t5_tokenizer, 77), "safety_checker": None},
        **{"feature_extractor": None, "watermarker": None},
    }
    return make_parts(**(parts | changes))


def _super_resolution_components() -> dict[str, Any]:
    return _components(
        unet=partial(_unet, in_channels=6, class_embed_type="timestep"),
        image_noising_scheduler=_scheduler,
    )


PIPELINES = (
    describe("deepfloyd-if IFPipeline text-to-image", _components, picture_call),
    describe(
        "deepfloyd-if-super-resolution IFSuperResolutionPipeline upscale",
        _super_resolution_components,
        lambda: picture_call(image=draw_picture(81, 16, 16), noise_level=50),
    ),
)
