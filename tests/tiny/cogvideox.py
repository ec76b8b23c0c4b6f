# SPDX-License-Identifier: Apache-2.0
"""CogVideoX."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.calls import REPAINT, video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_clip, draw_picture
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import build_model


def _transformer(**changes: Any) -> Any:
    config = {
        **{"num_attention_heads": 4, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4},
        **{"time_embed_dim": 8, "text_embed_dim": WIDTH, "num_layers": 1, "sample_width": 4},
        **{"sample_height": 2, "sample_frames": 5, "patch_size": 2, "max_text_seq_length": 32},
    }
    return build_model("CogVideoXTransformer3DModel", 90, **(config | changes))


_autoencoder = partial(
    build_model,
    "AutoencoderKLCogVideoX",
    91,
    down_block_types=("CogVideoXDownBlock3D",) * 4,
    **{"up_block_types": ("CogVideoXUpBlock3D",) * 4, "block_out_channels": (8, 8, 8, 8)},
    **{"latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 2},
)


def _components(**changes: Any) -> dict[str, Any]:
    from diffusers import CogVideoXDDIMScheduler

    parts = {
        **{"scheduler": CogVideoXDDIMScheduler, "vae": _autoencoder, "text_encoder": t5_encoder},
        **{"tokenizer": t5_tokenizer, "transformer": _transformer},
    }
    return make_parts(**(parts | changes))


PIPELINES = (
    describe("cogvideox CogVideoXPipeline text-to-video", _components, video_call),
    describe(
        "cogvideox-i2v CogVideoXImageToVideoPipeline image-to-video",
        partial(_components, transformer=partial(_transformer, in_channels=8)),
        lambda: video_call(image=draw_picture(41, 32, 16)),
    ),
    describe(
        "cogvideox-v2v CogVideoXVideoToVideoPipeline video-to-video",
        _components,
        lambda: video_call("num_frames", video=draw_clip(5, 42, 32, 16), **REPAINT),
    ),
)
