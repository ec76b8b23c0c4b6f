# SPDX-License-Identifier: Apache-2.0
"""Flux 1 and 2, and Chroma."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import flux_autoencoder, kl_autoencoder
from tests.tiny.calls import REPAINT, picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_mask, draw_picture
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, clip_text_encoder, qwen3_language_model, t5_encoder
from tests.tiny.tokenizers import clip_tokenizer, qwen_tokenizer, t5_tokenizer
from tests.tiny.weights import build_model


def _sizes() -> dict[str, Any]:
    return {
        **{"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16},
        **{"num_attention_heads": 2, "joint_attention_dim": WIDTH, "axes_dims_rope": (4, 4, 8)},
    }


def _transformer(**changes: Any) -> Any:
    flux = {"pooled_projection_dim": WIDTH, "guidance_embeds": True}
    return build_model("FluxTransformer2DModel", 30, **(_sizes() | flux | changes))


_chroma_transformer = partial(
    build_model,
    "ChromaTransformer2DModel",
    31,
    **{"approximator_num_channels": 16, "approximator_hidden_dim": WIDTH, "approximator_layers": 1},
    **_sizes(),
)


def _chroma_components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"scheduler": flow_match, "vae": flux_autoencoder, "text_encoder": t5_encoder},
        **{"tokenizer": t5_tokenizer, "transformer": _chroma_transformer},
    }
    return make_parts(**(parts | changes))


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"text_encoder": clip_text_encoder, "tokenizer": clip_tokenizer},
        **{"text_encoder_2": t5_encoder, "tokenizer_2": t5_tokenizer, "transformer": _transformer},
    }
    return _chroma_components(**(parts | changes))


def _kontext_components() -> dict[str, Any]:
    """The picture is scaled to one megapixel: the autoencoder shrinks it a lot."""
    return _components(vae=partial(flux_autoencoder, 6, block_out_channels=[2] + 5 * [8]))


def _klein_components() -> dict[str, Any]:
    from diffusers import AutoencoderKLFlux2

    return make_parts(
        **{"scheduler": flow_match, "vae": partial(kl_autoencoder, model_class=AutoencoderKLFlux2)},
        **{"text_encoder": qwen3_language_model, "tokenizer": qwen_tokenizer},
        transformer=partial(
            build_model,
            "Flux2Transformer2DModel",
            32,
            **_sizes()
            | {
                "axes_dims_rope": (4, 4, 4, 4),
                "joint_attention_dim": 2 * WIDTH,
                "timestep_guidance_channels": 32,
                "guidance_embeds": False,
            },
        ),
    )


def _call(**changes: Any) -> dict[str, Any]:
    return picture_call("negative_prompt", **({"max_sequence_length": 48} | changes))


PIPELINES = (
    describe("flux FluxPipeline text-to-image", _components, _call),
    describe(
        "flux-img2img FluxImg2ImgPipeline image-to-image",
        _components,
        lambda: _call(image=draw_picture(11, 48), **REPAINT),
    ),
    describe(
        "flux-inpaint FluxInpaintPipeline inpaint",
        _components,
        lambda: _call(image=draw_picture(12, 48), mask_image=draw_mask(48), **REPAINT),
    ),
    describe(
        "flux-fill FluxFillPipeline inpaint",
        partial(_components, transformer=partial(_transformer, in_channels=48, out_channels=16)),
        lambda: _call(image=draw_picture(13, 48), mask_image=draw_mask(48)),
    ),
    describe(
        "flux-kontext FluxKontextPipeline image-edit",
        _kontext_components,
        lambda: _call(image=draw_picture(14, 192, 128), height=128, width=192),
    ),
    describe(
        "flux-control FluxControlPipeline controlnet",
        partial(_components, transformer=partial(_transformer, in_channels=32, out_channels=16)),
        lambda: _call(control_image=draw_picture(15, 48)),
    ),
    describe(
        "chroma ChromaPipeline text-to-image",
        _chroma_components,
        partial(picture_call, max_sequence_length=48),
    ),
    describe(
        "flux2-klein Flux2KleinPipeline image-edit",
        _klein_components,
        lambda: _call(
            image=[draw_picture(16, 96, 64), draw_picture(17, 64, 80)],
            text_encoder_out_layers=(1, 2),
        ),
    ),
)
