# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 1 and its relatives."""

from __future__ import annotations

from typing import Any

from tests.tiny.autoencoders import kl_autoencoder
from tests.tiny.entry import TinyPipeline
from tests.tiny.media import draw_picture
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


def scheduler() -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
    )


def components(**changes: Any) -> dict[str, Any]:
    """The parts of a Stable Diffusion 1 pipeline without a safety checker."""
    parts = {
        "unet": unet,
        "scheduler": scheduler,
        "vae": kl_autoencoder,
        "text_encoder": clip_text_encoder,
        "tokenizer": clip_tokenizer,
    }
    made = {name: make() for name, make in parts.items() if name not in changes}
    return made | {"safety_checker": None, "feature_extractor": None} | changes


def _build_text_to_image() -> Any:
    from diffusers import StableDiffusionPipeline

    return StableDiffusionPipeline(**components())


def _build_image_to_image() -> Any:
    from diffusers import StableDiffusionImg2ImgPipeline

    return StableDiffusionImg2ImgPipeline(**components())


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
    TinyPipeline(
        "stable-diffusion",
        "StableDiffusionPipeline",
        "text-to-image",
        _build_text_to_image,
        _text_inputs,
    ),
    TinyPipeline(
        "stable-diffusion-img2img",
        "StableDiffusionImg2ImgPipeline",
        "image-to-image",
        _build_image_to_image,
        _image_inputs,
    ),
)
