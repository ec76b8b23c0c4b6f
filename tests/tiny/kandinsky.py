# SPDX-License-Identifier: Apache-2.0
"""Kandinsky 5, and 2.2, whose prior turns text into the embedding of a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion
from tests.tiny.autoencoders import flux_autoencoder
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import ddim, flow_match
from tests.tiny.text_encoders import (
    WIDTH,
    clip_text_encoder,
    clip_text_encoder_with_projection,
    qwen25_vl_encoder,
)
from tests.tiny.tokenizers import clip_tokenizer, qwen_vl_processor
from tests.tiny.vision import clip_image_processor, clip_vision_encoder
from tests.tiny.weights import build_model

_prior = partial(
    build_model,
    "PriorTransformer",
    140,
    **{"num_attention_heads": 2, "attention_head_dim": 8, "embedding_dim": WIDTH, "num_layers": 1},
)


def _prior_components() -> dict[str, Any]:
    from diffusers import UnCLIPScheduler

    return make_parts(
        prior=_prior,
        image_encoder=partial(clip_vision_encoder, image_size=224, patch_size=14),
        **{"text_encoder": clip_text_encoder_with_projection, "tokenizer": clip_tokenizer},
        image_processor=partial(clip_image_processor, 224),
        scheduler=partial(
            UnCLIPScheduler,
            variance_type="fixed_small_log",
            prediction_type="sample",
            clip_sample_range=10.0,
        ),
    )


def _decoder_unet() -> Any:
    return stable_diffusion.unet(
        141,
        **{"out_channels": 8, "addition_embed_type": "image", "encoder_hid_dim": WIDTH},
        encoder_hid_dim_type="image_proj",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        resnet_time_scale_shift="scale_shift",
    )


_movq = partial(
    build_model,
    "VQModel",
    142,
    block_out_channels=[32, 32],
    down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
    **{"up_block_types": ["AttnUpDecoderBlock2D", "UpDecoderBlock2D"], "latent_channels": 4},
    **{"vq_embed_dim": 4, "num_vq_embeddings": 12, "norm_type": "spatial"},
)


def _components() -> dict[str, Any]:
    prior = {f"prior_{name}": part for name, part in _prior_components().items()}
    return prior | make_parts(unet=_decoder_unet, movq=_movq, scheduler=ddim)


_transformer5 = partial(
    build_model,
    "Kandinsky5Transformer3DModel",
    143,
    **{"in_visual_dim": 4, "out_visual_dim": 4, "in_text_dim": WIDTH, "in_text_dim2": WIDTH},
    **{"time_dim": 16, "patch_size": (1, 2, 2), "model_dim": 16, "ff_dim": 32},
    **{"num_text_blocks": 1, "num_visual_blocks": 1, "axes_dims": (2, 2, 4)},
)


def _components5() -> dict[str, Any]:
    """Always paints about one megapixel: little is left to do at full size."""
    return make_parts(
        transformer=_transformer5,
        vae=partial(flux_autoencoder, 4, block_out_channels=[2, 8, 8, 8]),
        **{"text_encoder": qwen25_vl_encoder, "tokenizer": qwen_vl_processor},
        **{"text_encoder_2": clip_text_encoder, "tokenizer_2": clip_tokenizer},
        scheduler=flow_match,
    )


PIPELINES = (
    describe(
        "kandinsky5-t2i Kandinsky5T2IPipeline text-to-image",
        _components5,
        partial(picture_call, height=64, width=64, max_sequence_length=32),
    ),
    describe(
        "kandinsky-prior KandinskyV22PriorPipeline text-to-embedding",
        _prior_components,
        partial(picture_call, "height", "width"),
    ),
    describe(
        "kandinsky KandinskyV22CombinedPipeline text-to-image",
        _components,
        partial(picture_call, height=64, width=128, prior_num_inference_steps=2),
    ),
)
