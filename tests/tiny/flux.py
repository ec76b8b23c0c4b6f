# SPDX-License-Identifier: Apache-2.0
"""Flux."""

from __future__ import annotations

from typing import Any

from tests.tiny.autoencoders import flux_autoencoder
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, clip_text_encoder, t5_encoder
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer
from tests.tiny.weights import build_model


def _transformer(**changes: Any) -> Any:
    from diffusers import FluxTransformer2DModel

    config = {
        "patch_size": 1,
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": WIDTH,
        "pooled_projection_dim": WIDTH,
        "axes_dims_rope": (4, 4, 8),
        "guidance_embeds": True,
    }
    return build_model(FluxTransformer2DModel, 30, **(config | changes))


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        "scheduler": flow_match,
        "vae": flux_autoencoder,
        "text_encoder": clip_text_encoder,
        "tokenizer": clip_tokenizer,
        "text_encoder_2": t5_encoder,
        "tokenizer_2": t5_tokenizer,
        "transformer": _transformer,
    }
    return make_parts(**(parts | changes))


def _inputs(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "a lighthouse at night",
        "height": 32,
        "width": 48,
        "num_inference_steps": 2,
        "guidance_scale": 3.5,
        "max_sequence_length": 48,
    } | changes


PIPELINES = (describe("flux", "FluxPipeline", "text-to-image", _components, _inputs),)
