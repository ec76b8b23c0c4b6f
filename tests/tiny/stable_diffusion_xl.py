# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion XL and 3."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.autoencoders import flux_autoencoder, kl_autoencoder
from tests.tiny.calls import REPAINT, SIZE, picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_mask, draw_picture
from tests.tiny.schedulers import ddim, flow_match
from tests.tiny.text_encoders import (
    WIDTH,
    clip_text_encoder,
    clip_text_encoder_with_projection,
    t5_encoder,
)
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer
from tests.tiny.weights import build_model

# Two text encoders side by side; the pooled text and six numbers of eight waves each.
_XL_UNET = {
    "cross_attention_dim": 2 * WIDTH,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": WIDTH + 6 * 8,
}
# The refiner is told an aesthetic score instead of a target size.
_REFINER_UNET = _XL_UNET | {"projection_class_embeddings_input_dim": WIDTH + 5 * 8}


def _components(unet: dict[str, Any] = _XL_UNET, **changes: Any) -> dict[str, Any]:
    parts = {
        **{"unet": partial(stable_diffusion.unet, 22, **unet), "scheduler": ddim},
        **{"vae": kl_autoencoder, "text_encoder": clip_text_encoder},
        **{"text_encoder_2": clip_text_encoder_with_projection, "tokenizer": clip_tokenizer},
        "tokenizer_2": clip_tokenizer,
    }
    return make_parts(**(parts | changes))


def _sd3_sizes() -> dict[str, Any]:
    return {
        **{"sample_size": 16, "patch_size": 2, "in_channels": 4, "out_channels": 4},
        **{"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4},
        **{"caption_projection_dim": WIDTH, "joint_attention_dim": 2 * WIDTH},
        **{"pooled_projection_dim": 2 * WIDTH, "pos_embed_max_size": 32},
    }


_transformer = partial(build_model, "SD3Transformer2DModel", 23, **_sd3_sizes())


_controlnet = partial(build_model, "SD3ControlNetModel", 25, **_sd3_sizes())


def _sd3_components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"transformer": _transformer, "scheduler": flow_match, "vae": flux_autoencoder},
        **{"text_encoder": clip_text_encoder_with_projection, "tokenizer": clip_tokenizer},
        "text_encoder_2": partial(clip_text_encoder_with_projection, 1),
        **{"tokenizer_2": clip_tokenizer, "text_encoder_3": partial(t5_encoder, d_model=2 * WIDTH)},
        "tokenizer_3": t5_tokenizer,
    }
    return make_parts(**(parts | changes))


PIPELINES = (
    describe(
        "sdxl StableDiffusionXLPipeline text-to-image",
        _components,
        partial(picture_call, prompt_2="oil on canvas", original_size=(64, 96)),
    ),
    describe(
        "sdxl-img2img StableDiffusionXLImg2ImgPipeline image-to-image",
        partial(_components, _REFINER_UNET, requires_aesthetics_score=True),
        lambda: picture_call(*SIZE, image=draw_picture(8, 48), aesthetic_score=5.5, **REPAINT),
    ),
    describe(
        "sdxl-inpaint StableDiffusionXLInpaintPipeline inpaint",
        _components,
        lambda: picture_call(image=draw_picture(9, 48), mask_image=draw_mask(48), **REPAINT),
    ),
    describe(
        "stable-diffusion-3 StableDiffusion3Pipeline text-to-image",
        _sd3_components,
        partial(picture_call, max_sequence_length=48),
    ),
    describe(
        "stable-diffusion-3-img2img StableDiffusion3Img2ImgPipeline image-to-image",
        _sd3_components,
        lambda: picture_call(image=draw_picture(10, 48), **REPAINT),
    ),
    describe(
        "stable-diffusion-3-controlnet StableDiffusion3ControlNetPipeline controlnet",
        partial(_sd3_components, controlnet=_controlnet),
        lambda: picture_call(control_image=draw_picture(18, 48)),
    ),
)
