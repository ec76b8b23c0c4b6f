# SPDX-License-Identifier: Apache-2.0
"""Sana and SANA-Video."""

from __future__ import annotations

from typing import Any

from tests.tiny.autoencoders import wan_autoencoder
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, gemma2_encoder
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import build_model


def _video_transformer() -> Any:
    from diffusers import SanaVideoTransformer3DModel

    return build_model(
        SanaVideoTransformer3DModel,
        60,
        in_channels=16,
        out_channels=16,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=WIDTH,
        sample_size=8,
        patch_size=(1, 2, 2),
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )


def _video_components() -> dict[str, Any]:
    return make_parts(
        scheduler=flow_match,
        vae=wan_autoencoder,
        text_encoder=gemma2_encoder,
        tokenizer=gemma_tokenizer,
        transformer=_video_transformer,
    )


def _video_inputs(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "waves on a beach",
        "negative_prompt": "static",
        "height": 32,
        "width": 64,
        "frames": 5,
        "num_inference_steps": 2,
        "guidance_scale": 4.0,
        "max_sequence_length": 32,
        "use_resolution_binning": False,
    } | changes


def _image_to_video_inputs() -> dict[str, Any]:
    return _video_inputs(image=draw_picture(6, 64, 32))


PIPELINES = (
    describe(
        "sana-video",
        "SanaVideoPipeline",
        "text-to-video",
        _video_components,
        _video_inputs,
    ),
    describe(
        "sana-image-to-video",
        "SanaImageToVideoPipeline",
        "image-to-video",
        _video_components,
        _image_to_video_inputs,
    ),
)
