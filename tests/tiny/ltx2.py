# SPDX-License-Identifier: Apache-2.0
"""LTX-2: video with sound."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.calls import video_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, gemma3_language_model
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import build_model

_MEL_BINS = 8


_transformer = partial(
    build_model,
    "LTX2VideoTransformer3DModel",
    150,
    **{"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8},
    **{"cross_attention_dim": 16, "audio_in_channels": 4, "audio_out_channels": 4},
    **{"audio_num_attention_heads": 2, "audio_attention_head_dim": 4},
    **{"audio_cross_attention_dim": 8, "num_layers": 1, "caption_channels": WIDTH},
    **{"rope_double_precision": False, "rope_type": "split"},
)


def _connectors() -> Any:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    halves = {}
    for half in ("video", "audio"):
        halves |= {
            f"{half}_connector_num_attention_heads": 4,
            f"{half}_connector_attention_head_dim": 8,
            f"{half}_connector_num_layers": 1,
            f"{half}_connector_num_learnable_registers": None,
        }
    return build_model(
        LTX2TextConnectors,
        151,
        **{"caption_channels": WIDTH, "text_proj_in_factor": 3, "connector_rope_base_seq_len": 32},
        **{"rope_theta": 10000.0, "rope_double_precision": False},
        **{"causal_temporal_positioning": False, "rope_type": "split"},
        **halves,
    )


_autoencoder = partial(
    build_model,
    "AutoencoderKLLTX2Video",
    152,
    **{"latent_channels": 4, "block_out_channels": (8,), "decoder_block_out_channels": (8,)},
    **{"layers_per_block": (1,), "decoder_layers_per_block": (1, 1)},
    **{"spatio_temporal_scaling": (True,), "decoder_spatio_temporal_scaling": (True,)},
    **{"decoder_inject_noise": (False, False), "downsample_type": ("spatial",)},
    **{"upsample_residual": (False,), "upsample_factor": (1,), "patch_size": 1},
)

_audio_autoencoder = partial(
    build_model,
    "AutoencoderKLLTX2Audio",
    153,
    **{"base_channels": 4, "ch_mult": (1,), "num_res_blocks": 1, "resolution": 32},
    **{"latent_channels": 2, "mel_bins": _MEL_BINS},
)


def _vocoder() -> Any:
    from diffusers.pipelines.ltx2 import LTX2Vocoder

    return build_model(
        LTX2Vocoder,
        154,
        **{"in_channels": 2 * _MEL_BINS, "hidden_channels": 16, "out_channels": 2},
        **{"upsample_kernel_sizes": [4, 4], "upsample_factors": [2, 2], "resnet_kernel_sizes": [3]},
        **{"resnet_dilations": [[1, 3, 5]], "output_sampling_rate": 16000},
    )


_components = partial(
    make_parts,
    **{"scheduler": flow_match, "vae": _autoencoder, "audio_vae": _audio_autoencoder},
    **{"text_encoder": gemma3_language_model, "tokenizer": gemma_tokenizer},
    **{"connectors": _connectors, "transformer": _transformer, "vocoder": _vocoder},
)


PIPELINES = (
    describe(
        "ltx2 LTX2Pipeline text-to-video-and-audio",
        _components,
        partial(
            video_call,
            **{"height": 32, "width": 64, "frame_rate": 25.0},
            **{"spatio_temporal_guidance_blocks": [0], "use_cross_timestep": False},
        ),
    ),
)
