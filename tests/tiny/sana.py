# SPDX-License-Identifier: Apache-2.0
"""Sana and SANA-Video."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import wan_autoencoder
from tests.tiny.calls import picture_call, video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, gemma2_encoder
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import build_model

_video_transformer = partial(
    build_model,
    "SanaVideoTransformer3DModel",
    60,
    **{"in_channels": 16, "out_channels": 16, "num_attention_heads": 2, "attention_head_dim": 12},
    **{"num_layers": 1, "num_cross_attention_heads": 2, "cross_attention_head_dim": 12},
    **{"cross_attention_dim": 24, "caption_channels": WIDTH, "sample_size": 8},
    **{"patch_size": (1, 2, 2), "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32},
)

_video_components = partial(
    make_parts,
    **{"scheduler": flow_match, "vae": wan_autoencoder, "text_encoder": gemma2_encoder},
    **{"tokenizer": gemma_tokenizer, "transformer": _video_transformer},
)

_transformer = partial(
    build_model,
    "SanaTransformer2DModel",
    61,
    **{"patch_size": 1, "in_channels": 4, "out_channels": 4, "num_layers": 1},
    **{"num_attention_heads": 2, "attention_head_dim": 8, "num_cross_attention_heads": 2},
    **{"cross_attention_head_dim": 8, "cross_attention_dim": 16, "caption_channels": WIDTH},
    sample_size=16,
)


def _autoencoder() -> Any:
    halves = {}
    for half in ("encoder", "decoder"):
        halves |= {
            f"{half}_block_types": ("ResBlock", "EfficientViTBlock"),
            f"{half}_block_out_channels": (8, 8),
            f"{half}_qkv_multiscales": ((), (5,)),
            f"{half}_layers_per_block": (1, 1),
        }
    return build_model(
        "AutoencoderDC",
        62,
        **{"latent_channels": 4, "attention_head_dim": 2, "downsample_block_type": "conv"},
        upsample_block_type="interpolate",
        **halves,
    )


def _components() -> dict[str, Any]:
    return _video_components() | make_parts(vae=_autoencoder, transformer=_transformer)


_UNBINNED = {"use_resolution_binning": False, "max_sequence_length": 32}


def _video_call(**changes: Any) -> dict[str, Any]:
    return video_call("num_frames", frames=5, height=32, width=64, **_UNBINNED, **changes)


PIPELINES = (
    describe(
        "sana SanaPipeline text-to-image", _components, partial(picture_call, width=64, **_UNBINNED)
    ),
    describe("sana-video SanaVideoPipeline text-to-video", _video_components, _video_call),
    describe(
        "sana-image-to-video SanaImageToVideoPipeline image-to-video",
        _video_components,
        lambda: _video_call(image=draw_picture(51, 64, 32)),
    ),
)
