# SPDX-License-Identifier: Apache-2.0
"""Text-to-image transformers with one text encoder, and DiT with classes."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import flux_autoencoder, kl_autoencoder
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import ddim, flow_match
from tests.tiny.text_encoders import WIDTH, gemma2_encoder, glm_encoder, t5_encoder, umt5_encoder
from tests.tiny.tokenizers import gemma_tokenizer, glm_tokenizer, t5_tokenizer
from tests.tiny.weights import build_model


def _patch_transformer(**changes: Any) -> dict[str, Any]:
    """Sizes that PixArt and DiT share: they predict a variance beside the noise."""
    sizes = {
        **{"sample_size": 16, "patch_size": 2, "in_channels": 4, "out_channels": 8},
        **{"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8},
    }
    return sizes | changes


def _pixart_components() -> dict[str, Any]:
    sizes = _patch_transformer(caption_channels=WIDTH, cross_attention_dim=16)
    return make_parts(
        transformer=partial(build_model, "PixArtTransformer2DModel", 100, **sizes),
        **{"scheduler": ddim, "vae": kl_autoencoder, "text_encoder": t5_encoder},
        tokenizer=t5_tokenizer,
    )


def _dit_components() -> dict[str, Any]:
    sizes = _patch_transformer(norm_type="ada_norm_zero", num_embeds_ada_norm=1000)
    return make_parts(
        transformer=partial(build_model, "DiTTransformer2DModel", 101, **sizes),
        **{"scheduler": ddim, "vae": kl_autoencoder},
        id2label={0: "goldfish", 1: "tree frog, frog"},
    )


def _cogview4_components() -> dict[str, Any]:
    sizes = {
        **{"patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 1},
        **{"attention_head_dim": 8, "num_attention_heads": 2, "text_embed_dim": WIDTH},
        **{"time_embed_dim": 8, "condition_dim": 4, "rope_axes_dim": (32, 32)},
    }
    return make_parts(
        transformer=partial(build_model, "CogView4Transformer2DModel", 102, **sizes),
        scheduler=partial(flow_match, use_dynamic_shifting=True, time_shift_type="linear"),
        **{"vae": kl_autoencoder, "text_encoder": glm_encoder, "tokenizer": glm_tokenizer},
    )


def _lumina2_components() -> dict[str, Any]:
    sizes = {
        **{"sample_size": 16, "patch_size": 2, "in_channels": 4, "hidden_size": 16},
        **{"num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 2, "num_kv_heads": 2},
        **{"multiple_of": 16, "axes_dim_rope": (4, 2, 2), "axes_lens": (512, 32, 32)},
        "cap_feat_dim": WIDTH,
    }
    return make_parts(
        transformer=partial(build_model, "Lumina2Transformer2DModel", 103, **sizes),
        **{"scheduler": flow_match, "vae": partial(flux_autoencoder, 4)},
        **{"text_encoder": gemma2_encoder, "tokenizer": gemma_tokenizer},
    )


def _aura_flow_components() -> dict[str, Any]:
    sizes = {
        **{"sample_size": 16, "patch_size": 2, "in_channels": 4, "out_channels": 4},
        **{"num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8},
        **{"num_attention_heads": 4, "caption_projection_dim": WIDTH, "joint_attention_dim": WIDTH},
        "pos_embed_max_size": 256,
    }
    return make_parts(
        transformer=partial(build_model, "AuraFlowTransformer2DModel", 104, **sizes),
        **{"scheduler": flow_match, "vae": kl_autoencoder, "text_encoder": umt5_encoder},
        tokenizer=t5_tokenizer,
    )


_SHORT = partial(picture_call, max_sequence_length=48)
PIPELINES = (
    describe(
        "pixart-sigma PixArtSigmaPipeline text-to-image",
        _pixart_components,
        partial(_SHORT, use_resolution_binning=False),
    ),
    describe(
        "dit DiTPipeline class-to-image",
        _dit_components,
        lambda: {"class_labels": [1, 7], "guidance_scale": 3.0, "num_inference_steps": 2},
    ),
    describe("cogview4 CogView4Pipeline text-to-image", _cogview4_components, _SHORT),
    describe("lumina2 Lumina2Pipeline text-to-image", _lumina2_components, picture_call),
    describe("aura-flow AuraFlowPipeline text-to-image", _aura_flow_components, _SHORT),
)
