# SPDX-License-Identifier: Apache-2.0
"""Mochi, Latte and SkyReels: video transformers that read T5's text."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import kl_autoencoder, wan_autoencoder
from tests.tiny.calls import video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import ddim, flow_match, flow_unipc
from tests.tiny.text_encoders import WIDTH, t5_encoder, umt5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.wan import transformer_sizes
from tests.tiny.weights import build_model


def _mochi_components() -> dict[str, Any]:
    return make_parts(
        **{"scheduler": flow_match, "text_encoder": t5_encoder, "tokenizer": t5_tokenizer},
        transformer=partial(
            build_model,
            "MochiTransformer3DModel",
            170,
            **{"patch_size": 2, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2},
            **{"pooled_projection_dim": 16, "in_channels": 12, "text_embed_dim": WIDTH},
            **{"time_embed_dim": 4, "max_sequence_length": 32},
        ),
        vae=partial(
            build_model,
            "AutoencoderKLMochi",
            171,
            encoder_block_out_channels=(32, 32, 32, 32),
            decoder_block_out_channels=(32, 32, 32, 32),
            layers_per_block=(1, 1, 1, 1, 1),
        ),
    )


def _latte_components() -> dict[str, Any]:
    return make_parts(
        **{"scheduler": ddim, "vae": kl_autoencoder, "text_encoder": t5_encoder},
        tokenizer=partial(t5_tokenizer, 120),
        transformer=partial(
            build_model,
            "LatteTransformer3DModel",
            172,
            **{"sample_size": 16, "video_length": 4, "num_layers": 1, "patch_size": 2},
            **{"num_attention_heads": 2, "attention_head_dim": 12, "caption_channels": WIDTH},
            **{"in_channels": 4, "out_channels": 8, "cross_attention_dim": 24},
            **{"norm_type": "ada_norm_single", "norm_elementwise_affine": False},
        ),
    )


def _skyreels_components() -> dict[str, Any]:
    return make_parts(
        **{"scheduler": flow_unipc, "vae": wan_autoencoder, "text_encoder": umt5_encoder},
        tokenizer=t5_tokenizer,
        transformer=partial(
            build_model, "SkyReelsV2Transformer3DModel", 173, **transformer_sizes()
        ),
    )


PIPELINES = (
    describe(
        "mochi MochiPipeline text-to-video", _mochi_components, partial(video_call, num_frames=7)
    ),
    describe(
        "latte LattePipeline text-to-video",
        _latte_components,
        partial(video_call, "num_frames", "max_sequence_length", video_length=4),
    ),
    describe("skyreels-v2 SkyReelsV2Pipeline text-to-video", _skyreels_components, video_call),
)
