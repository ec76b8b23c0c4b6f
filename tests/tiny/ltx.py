# SPDX-License-Identifier: Apache-2.0
"""LTX-Video."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.calls import video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_picture
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import build_model

_transformer = partial(
    build_model,
    "LTXVideoTransformer3DModel",
    110,
    **{"in_channels": 8, "out_channels": 8, "num_attention_heads": 4, "attention_head_dim": 8},
    **{"cross_attention_dim": WIDTH, "caption_channels": WIDTH, "num_layers": 1},
)

_autoencoder = partial(
    build_model,
    "AutoencoderKLLTXVideo",
    111,
    **{"latent_channels": 8, "block_out_channels": (8, 8, 8, 8)},
    **{"decoder_block_out_channels": (8, 8, 8, 8), "layers_per_block": (1, 1, 1, 1, 1)},
    decoder_layers_per_block=(1, 1, 1, 1, 1),
    spatio_temporal_scaling=(True, True, False, False),
    **{"decoder_spatio_temporal_scaling": (True, True, False, False), "patch_size": 1},
)

_components = partial(
    make_parts,
    **{"scheduler": flow_match, "vae": _autoencoder, "text_encoder": t5_encoder},
    **{"tokenizer": t5_tokenizer, "transformer": _transformer},
)


def _call(**changes: Any) -> dict[str, Any]:
    return video_call(height=32, width=64, frame_rate=20, **changes)


PIPELINES = (
    describe("ltx LTXPipeline text-to-video", _components, _call),
    describe(
        "ltx-i2v LTXImageToVideoPipeline image-to-video",
        _components,
        lambda: _call(image=draw_picture(61, 64, 32)),
    ),
    describe(
        "ltx-long LTXI2VLongMultiPromptPipeline image-to-video",
        _components,
        lambda: _call(
            cond_image=draw_picture(62, 64, 32),
            prompt_segments=[
                {"start_window": 0, "end_window": 0, "text": "a kite over a field"},
                {"start_window": 1, "end_window": 2, "text": "a kite in a tree"},
            ],
            num_frames=17,
            temporal_tile_size=8,
            temporal_overlap=4,
            skip_steps_sigma_threshold=None,
        ),
    ),
)
