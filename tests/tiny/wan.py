# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import wan_autoencoder
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_clip, draw_picture
from tests.tiny.schedulers import flow_unipc
from tests.tiny.text_encoders import WIDTH, umt5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import build_model


def _transformer(seed: int = 40, in_channels: int = 16) -> Any:
    from diffusers import WanTransformer3DModel

    return build_model(
        WanTransformer3DModel,
        seed,
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=in_channels,
        out_channels=16,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        "scheduler": flow_unipc,
        "vae": wan_autoencoder,
        "text_encoder": umt5_encoder,
        "tokenizer": t5_tokenizer,
        "transformer": _transformer,
    }
    return make_parts(**(parts | changes))


def _text_inputs(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "a cat walks on the grass",
        "negative_prompt": "static",
        "height": 16,
        "width": 32,
        "num_frames": 5,
        "num_inference_steps": 2,
        "guidance_scale": 4.0,
        "max_sequence_length": 32,
    } | changes


def _image_components() -> dict[str, Any]:
    return _components(
        transformer=partial(_transformer, 40, 36),
        transformer_2=partial(_transformer, 41, 36),
        image_encoder=None,
        image_processor=None,
        boundary_ratio=0.9,
    )


def _image_inputs() -> dict[str, Any]:
    return _text_inputs(image=draw_picture(2, 32, 16), guidance_scale_2=3.0)


def _two_stage_components() -> dict[str, Any]:
    return _components(transformer_2=partial(_transformer, 41), boundary_ratio=0.875)


def _video_inputs() -> dict[str, Any]:
    inputs = _text_inputs(video=draw_clip(5, 3, 32, 16), strength=0.7, num_inference_steps=3)
    del inputs["num_frames"]
    return inputs


PIPELINES = (
    describe("wan-t2v", "WanPipeline", "text-to-video", _components, _text_inputs),
    describe("wan22-t2v", "WanPipeline", "text-to-video", _two_stage_components, _text_inputs),
    describe(
        "wan22-i2v",
        "WanImageToVideoPipeline",
        "image-to-video",
        _image_components,
        _image_inputs,
    ),
    describe(
        "wan-v2v",
        "WanVideoToVideoPipeline",
        "video-to-video",
        _components,
        _video_inputs,
    ),
)
