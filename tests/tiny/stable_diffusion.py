# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 1 and its relatives."""

from __future__ import annotations

from typing import Any

from tests.tiny.autoencoders import kl_autoencoder
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import ddim
from tests.tiny.text_encoders import WIDTH, clip_text_encoder
from tests.tiny.tokenizers import clip_tokenizer
from tests.tiny.weights import build_model


def unet(seed: int = 20, **changes: Any) -> Any:
    """UNet2DConditionModel with one attention level."""
    from diffusers import UNet2DConditionModel

    config = {
        "sample_size": 16,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": WIDTH,
    }
    return build_model(UNet2DConditionModel, seed, **(config | changes))


def components(**changes: Any) -> dict[str, Any]:
    """The parts of a Stable Diffusion 1 pipeline without a safety checker."""
    parts = {
        "unet": unet,
        "scheduler": ddim,
        "vae": kl_autoencoder,
        "text_encoder": clip_text_encoder,
        "tokenizer": clip_tokenizer,
        "safety_checker": None,
        "feature_extractor": None,
    }
    return make_parts(**(parts | changes))


def _text_inputs() -> dict[str, Any]:
    return {
        "prompt": "a red fox in the snow",
        "negative_prompt": "blurry",
        "height": 32,
        "width": 48,
        "num_inference_steps": 2,
        "guidance_scale": 3.5,
    }


def _image_inputs() -> dict[str, Any]:
    return {
        "prompt": "a red fox in the snow",
        "image": draw_picture(1, width=48),
        "strength": 0.75,
        "num_inference_steps": 3,
        "guidance_scale": 3.5,
    }


PIPELINES = (
    describe(
        "stable-diffusion",
        "StableDiffusionPipeline",
        "text-to-image",
        components,
        _text_inputs,
    ),
    describe(
        "stable-diffusion-img2img",
        "StableDiffusionImg2ImgPipeline",
        "image-to-image",
        components,
        _image_inputs,
    ),
)
