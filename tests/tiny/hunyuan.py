# SPDX-License-Identifier: Apache-2.0
"""HunyuanVideo."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.calls import video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import (
    WIDTH,
    clip_text_encoder,
    llama_encoder,
    qwen25_vl_text_encoder,
    t5_encoder,
)
from tests.tiny.tokenizers import clip_tokenizer, llama_tokenizer, qwen_tokenizer
from tests.tiny.weights import build_model

_transformer = partial(
    build_model,
    "HunyuanVideoTransformer3DModel",
    120,
    **{"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 10},
    **{"num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1, "patch_size": 1},
    **{"guidance_embeds": True, "text_embed_dim": WIDTH, "pooled_projection_dim": WIDTH},
    rope_axes_dim=(2, 4, 4),
)

_autoencoder = partial(
    build_model,
    "AutoencoderKLHunyuanVideo",
    121,
    **{"latent_channels": 4, "down_block_types": ("HunyuanVideoDownBlock3D",) * 4},
    **{"up_block_types": ("HunyuanVideoUpBlock3D",) * 4, "block_out_channels": (8, 8, 8, 8)},
    **{"layers_per_block": 1, "norm_num_groups": 4},
)

_components = partial(
    make_parts,
    **{"scheduler": flow_match, "vae": _autoencoder, "text_encoder": llama_encoder},
    **{"tokenizer": llama_tokenizer, "text_encoder_2": clip_text_encoder},
    **{"tokenizer_2": clip_tokenizer, "transformer": _transformer},
)

_transformer15 = partial(
    build_model,
    "HunyuanVideo15Transformer3DModel",
    122,
    **{"in_channels": 9, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8},
    **{"num_layers": 1, "num_refiner_layers": 1, "mlp_ratio": 2.0, "text_embed_dim": WIDTH},
    **{"text_embed_2_dim": WIDTH, "image_embed_dim": 12, "rope_axes_dim": (2, 2, 4)},
    target_size=16,
)

_autoencoder15 = partial(
    build_model,
    "AutoencoderKLHunyuanVideo15",
    123,
    **{"latent_channels": 4, "block_out_channels": (16, 16), "layers_per_block": 1},
    **{"spatial_compression_ratio": 4, "temporal_compression_ratio": 2},
    **{"downsample_match_channel": False, "upsample_match_channel": False},
)


def _components15() -> dict[str, Any]:
    from diffusers import ClassifierFreeGuidance
    from transformers import ByT5Tokenizer

    return make_parts(
        **{"scheduler": flow_match, "vae": _autoencoder15, "text_encoder": qwen25_vl_text_encoder},
        **{"tokenizer": qwen_tokenizer, "text_encoder_2": t5_encoder, "tokenizer_2": ByT5Tokenizer},
        transformer=_transformer15,
        guider=partial(ClassifierFreeGuidance, guidance_scale=2.0),
    )


PIPELINES = (
    describe(
        "hunyuan-video-15 HunyuanVideo15Pipeline text-to-video",
        _components15,
        lambda: video_call("guidance_scale", "max_sequence_length", prompt='a sign saying "tiny"'),
    ),
    describe(
        "hunyuan-video HunyuanVideoPipeline text-to-video",
        _components,
        partial(video_call, true_cfg_scale=2.0),
    ),
)
