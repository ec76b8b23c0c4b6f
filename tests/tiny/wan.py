# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import wan_autoencoder
from tests.tiny.calls import REPAINT, video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_clip, draw_mask, draw_picture
from tests.tiny.schedulers import flow_unipc
from tests.tiny.text_encoders import WIDTH, umt5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.vision import clip_image_processor, clip_vision_encoder
from tests.tiny.weights import build_model


def transformer_sizes() -> dict[str, Any]:
    return {
        **{"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12},
        **{"in_channels": 16, "out_channels": 16, "text_dim": WIDTH, "freq_dim": 32, "ffn_dim": 32},
        **{"num_layers": 1, "rope_max_seq_len": 32},
    }


def _transformer(seed: int = 40, in_channels: int = 16, **changes: Any) -> Any:
    sizes = transformer_sizes() | {"in_channels": in_channels} | changes
    return build_model("WanTransformer3DModel", seed, **sizes)


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"scheduler": flow_unipc, "vae": wan_autoencoder, "text_encoder": umt5_encoder},
        **{"tokenizer": t5_tokenizer, "transformer": _transformer},
    }
    return make_parts(**(parts | changes))


def _seeing_components() -> dict[str, Any]:
    """Wan 2.1: one transformer, which is also shown what CLIP makes of both pictures."""
    return _components(
        transformer=partial(
            _transformer, 42, 36, image_dim=WIDTH, added_kv_proj_dim=24, pos_embed_seq_len=34
        ),
        image_encoder=clip_vision_encoder,
        image_processor=clip_image_processor,
    )


_vace_transformer = partial(
    build_model,
    "WanVACETransformer3DModel",
    43,
    **{"vace_layers": [0], "vace_in_channels": 96},
    **transformer_sizes(),
)


def _vace_components() -> dict[str, Any]:
    return _components(transformer=_vace_transformer)


def _image_components() -> dict[str, Any]:
    return _components(
        transformer=partial(_transformer, 40, 36),
        transformer_2=partial(_transformer, 41, 36),
        image_encoder=None,
        image_processor=None,
        boundary_ratio=0.9,
    )


def _two_stage_components() -> dict[str, Any]:
    return _components(transformer_2=partial(_transformer, 41), boundary_ratio=0.875)


def _animate_components() -> dict[str, Any]:
    special = {
        **{"in_channels": 36, "latent_channels": 16, "image_dim": WIDTH},
        **{"motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_encoder_size": 16},
        **{"motion_style_dim": 8, "motion_dim": 4, "motion_encoder_dim": 16},
        **{"face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2},
        "inject_face_latents_blocks": 1,
    }
    sizes = transformer_sizes() | special
    return _components(
        transformer=partial(build_model, "WanAnimateTransformer3DModel", 44, **sizes),
        image_encoder=clip_vision_encoder,
        image_processor=clip_image_processor,
    )


PIPELINES = (
    describe("wan-t2v WanPipeline text-to-video", _components, video_call),
    describe(
        "wan22-t2v WanPipeline text-to-video",
        _two_stage_components,
        partial(video_call, guidance_scale_2=3.0),
    ),
    describe(
        "wan-i2v WanImageToVideoPipeline image-to-video",
        _seeing_components,
        lambda: video_call(image=draw_picture(21, 32, 16), last_image=draw_picture(22, 32, 16)),
    ),
    describe(
        "wan22-i2v WanImageToVideoPipeline image-to-video",
        _image_components,
        lambda: video_call(image=draw_picture(23, 32, 16), guidance_scale_2=3.0),
    ),
    describe(
        "wan-v2v WanVideoToVideoPipeline video-to-video",
        _components,
        lambda: video_call("num_frames", video=draw_clip(5, 24, 32, 16), **REPAINT),
    ),
    describe(
        "wan-vace WanVACEPipeline video-edit",
        _vace_components,
        lambda: video_call(
            video=draw_clip(5, 25, 32, 16),
            mask=[draw_mask(32, 16)] * 5,
            reference_images=[draw_picture(26, 32, 16)],
        ),
    ),
    describe(
        "wan-animate WanAnimatePipeline image-and-video-to-video",
        _animate_components,
        lambda: video_call(
            "num_frames",
            image=draw_picture(27, 32, 16),
            pose_video=draw_clip(9, 28, 32, 16),
            face_video=draw_clip(9, 29, 16, 16),
            segment_frame_length=9,
        ),
    ),
)
