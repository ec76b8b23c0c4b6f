# SPDX-License-Identifier: Apache-2.0
"""Video from the UNets of Stable Diffusion: AnimateDiff and Stable Video Diffusion."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.calls import REPAINT, picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_clip, draw_picture
from tests.tiny.text_encoders import WIDTH
from tests.tiny.vision import clip_image_processor, clip_vision_encoder
from tests.tiny.weights import build_model

_motion_adapter = partial(
    build_model,
    "MotionAdapter",
    130,
    **{"block_out_channels": (8, 16), "motion_layers_per_block": 1, "motion_norm_num_groups": 2},
    motion_num_attention_heads=2,
)


def _animate_components() -> dict[str, Any]:
    return stable_diffusion.bare_components(motion_adapter=_motion_adapter)


_video_unet = partial(
    build_model,
    "UNetSpatioTemporalConditionModel",
    131,
    **{"sample_size": 16, "block_out_channels": (32,), "layers_per_block": 1},
    down_block_types=("CrossAttnDownBlockSpatioTemporal",),
    **{"up_block_types": ("CrossAttnUpBlockSpatioTemporal",), "cross_attention_dim": WIDTH},
    **{"num_attention_heads": (2,), "addition_time_embed_dim": 8},
    projection_class_embeddings_input_dim=3 * 8,
)

_video_autoencoder = partial(
    build_model,
    "AutoencoderKLTemporalDecoder",
    132,
    block_out_channels=(32, 32),
    **{"down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"), "layers_per_block": 1},
)


def _video_components() -> dict[str, Any]:
    from diffusers import EulerDiscreteScheduler

    return make_parts(
        **{"unet": _video_unet, "vae": _video_autoencoder},
        image_encoder=partial(clip_vision_encoder, image_size=224, patch_size=14),
        feature_extractor=partial(clip_image_processor, 224),
        scheduler=partial(
            EulerDiscreteScheduler,
            **{"prediction_type": "v_prediction", "sigma_min": 0.002, "sigma_max": 700.0},
            **{"timestep_type": "continuous", "use_karras_sigmas": True},
        ),
    )


PIPELINES = (
    describe(
        "animatediff AnimateDiffPipeline text-to-video",
        _animate_components,
        partial(picture_call, num_frames=4),
    ),
    describe(
        "animatediff-v2v AnimateDiffVideoToVideoPipeline video-to-video",
        _animate_components,
        lambda: picture_call(video=draw_clip(4, 71, 48), **REPAINT),
    ),
    describe(
        "stable-video-diffusion StableVideoDiffusionPipeline image-to-video",
        _video_components,
        lambda: {
            **{"image": draw_picture(75, 48), "height": 32, "width": 48, "num_frames": 3},
            **{"num_inference_steps": 2, "fps": 6, "max_guidance_scale": 2.5},
        },
    ),
)
