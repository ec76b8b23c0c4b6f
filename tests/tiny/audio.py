# SPDX-License-Identifier: Apache-2.0
"""Text to audio."""

from __future__ import annotations

from typing import Any

from tests.tiny.entry import describe, make_parts
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import build_model


def _stable_audio_components() -> dict[str, Any]:
    import diffusers

    return make_parts(
        scheduler=diffusers.CosineDPMSolverMultistepScheduler,
        vae=build_model(
            diffusers.AutoencoderOobleck,
            70,
            encoder_hidden_size=6,
            downsampling_ratios=[2, 4],
            decoder_channels=4,
            decoder_input_channels=4,
            audio_channels=2,
            channel_multiples=[1, 2],
            sampling_rate=800,
        ),
        text_encoder=t5_encoder,
        tokenizer=t5_tokenizer,
        projection_model=build_model(
            diffusers.StableAudioProjectionModel,
            71,
            text_encoder_dim=WIDTH,
            conditioning_dim=WIDTH,
            min_value=0,
            max_value=32,
        ),
        transformer=build_model(
            diffusers.StableAudioDiTModel,
            72,
            sample_size=100,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            num_key_value_attention_heads=2,
            cross_attention_dim=WIDTH,
            cross_attention_input_dim=WIDTH,
            global_states_input_dim=2 * WIDTH,
            time_proj_dim=8,
        ),
    )


def _stable_audio_inputs() -> dict[str, Any]:
    return {
        "prompt": "rain on a tin roof",
        "negative_prompt": "speech",
        "audio_end_in_s": 0.75,
        "num_inference_steps": 2,
        "guidance_scale": 4.0,
    }


PIPELINES = (
    describe(
        "stable-audio",
        "StableAudioPipeline",
        "text-to-audio",
        _stable_audio_components,
        _stable_audio_inputs,
    ),
)
