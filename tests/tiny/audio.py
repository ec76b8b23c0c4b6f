# SPDX-License-Identifier: Apache-2.0
"""Text to audio."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import kl_autoencoder
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import make_sound
from tests.tiny.schedulers import ddim, flow_match
from tests.tiny.text_encoders import WIDTH, qwen3_encoder, t5_encoder
from tests.tiny.tokenizers import VOCAB_SIZE, qwen_tokenizer, roberta_tokenizer, t5_tokenizer
from tests.tiny.weights import build_model, randomize


def _wave_autoencoder() -> Any:
    """Oobleck: eight samples a latent, 800 of them a second."""
    import torch

    autoencoder = build_model(
        "AutoencoderOobleck",
        70,
        **{"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_channels": 4},
        **{"decoder_input_channels": 4, "audio_channels": 2, "channel_multiples": [1, 2]},
        sampling_rate=800,
    )
    with torch.no_grad():
        autoencoder.decoder.conv2.weight_g.mul_(0.01)  # sound within -1.0-1.0
    return autoencoder


def _stable_audio_components() -> dict[str, Any]:
    import diffusers

    return make_parts(
        **{"scheduler": diffusers.CosineDPMSolverMultistepScheduler, "vae": _wave_autoencoder},
        **{"text_encoder": t5_encoder, "tokenizer": t5_tokenizer},
        projection_model=build_model(
            diffusers.StableAudioProjectionModel,
            71,
            **{"text_encoder_dim": WIDTH, "conditioning_dim": WIDTH, "min_value": 0},
            max_value=32,
        ),
        transformer=build_model(
            diffusers.StableAudioDiTModel,
            72,
            **{"sample_size": 100, "in_channels": 4, "out_channels": 4, "num_layers": 1},
            **{"attention_head_dim": 8, "num_attention_heads": 2},
            **{"num_key_value_attention_heads": 2, "cross_attention_dim": WIDTH},
            **{"cross_attention_input_dim": WIDTH, "global_states_input_dim": 2 * WIDTH},
            time_proj_dim=8,
        ),
    )


def _mel_autoencoder() -> Any:
    return kl_autoencoder(in_channels=1, out_channels=1)


def _vocoder() -> Any:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(
        **{"model_in_dim": 8, "sampling_rate": 800, "upsample_initial_channel": 16},
        **{"upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4]},
        **{"resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 3]]},
        normalize_before=False,
    )
    return randomize(SpeechT5HifiGan(config), 73)


def _clap() -> Any:
    from transformers import ClapConfig, ClapModel

    text = {
        **{"vocab_size": VOCAB_SIZE, "hidden_size": WIDTH, "intermediate_size": 37},
        **{"num_attention_heads": 4, "num_hidden_layers": 1, "projection_dim": WIDTH},
        "max_position_embeddings": 80,
    }
    audio = {
        **{"spec_size": 8, "window_size": 4, "num_mel_bins": 8, "depths": [1, 1]},
        **{"num_attention_heads": [1, 1], "patch_size": 2, "patch_stride": 2},
        **{"patch_embeds_hidden_size": 16, "hidden_size": 32, "projection_dim": WIDTH},
    }
    config = ClapConfig(text_config=text, audio_config=audio, projection_dim=WIDTH)
    return randomize(ClapModel(config), 74)


def _language_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=WIDTH, n_head=2, n_layer=1, vocab_size=VOCAB_SIZE, n_positions=128)
    config.max_new_tokens = 4
    return randomize(GPT2LMHeadModel(config), 75)


def _audioldm2_components() -> dict[str, Any]:
    import diffusers
    from transformers import ClapFeatureExtractor

    return make_parts(
        **{"scheduler": ddim, "vae": _mel_autoencoder, "text_encoder": _clap},
        tokenizer=roberta_tokenizer,
        feature_extractor=partial(ClapFeatureExtractor, feature_size=8, hop_length=480),
        **{"text_encoder_2": t5_encoder, "tokenizer_2": t5_tokenizer},
        language_model=_language_model,
        projection_model=partial(
            build_model,
            diffusers.AudioLDM2ProjectionModel,
            76,
            text_encoder_dim=WIDTH,
            text_encoder_1_dim=WIDTH,
            langauge_model_dim=WIDTH,
        ),
        unet=partial(
            build_model,
            diffusers.AudioLDM2UNet2DConditionModel,
            77,
            **{"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1},
            **{"norm_num_groups": 4, "attention_head_dim": 4},
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=(WIDTH, WIDTH),
        ),
        vocoder=_vocoder,
    )


def _ace_step_components() -> dict[str, Any]:
    from diffusers.pipelines.ace_step import AceStepConditionEncoder

    sizes = {
        **{"hidden_size": WIDTH, "intermediate_size": 37, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16},
    }
    return make_parts(
        **{"scheduler": partial(flow_match, num_train_timesteps=1), "vae": _wave_autoencoder},
        **{"text_encoder": qwen3_encoder, "tokenizer": qwen_tokenizer},
        transformer=partial(
            build_model,
            "AceStepTransformer1DModel",
            78,
            **{"num_hidden_layers": 2, "in_channels": 12, "audio_acoustic_hidden_dim": 4},
            patch_size=2,
            **sizes,
        ),
        condition_encoder=partial(
            build_model,
            AceStepConditionEncoder,
            79,
            **{"text_hidden_dim": WIDTH, "timbre_hidden_dim": 4},
            **{"num_lyric_encoder_hidden_layers": 1, "num_timbre_encoder_hidden_layers": 1},
            **sizes,
        ),
    )


def _sound_call(**changes: Any) -> dict[str, Any]:
    arguments = picture_call(
        "height", "width", prompt="rain on a tin roof", negative_prompt="speech"
    )
    return arguments | changes


PIPELINES = (
    describe(
        "stable-audio StableAudioPipeline text-to-audio",
        _stable_audio_components,
        partial(_sound_call, audio_end_in_s=0.75),
    ),
    describe(
        "stable-audio-variation StableAudioPipeline audio-to-audio",
        _stable_audio_components,
        lambda: _sound_call(
            initial_audio_waveforms=make_sound(800), initial_audio_sampling_rate=800
        ),
    ),
    describe(
        "audioldm2 AudioLDM2Pipeline text-to-audio",
        _audioldm2_components,
        partial(_sound_call, audio_length_in_s=0.5),
    ),
    describe(
        "ace-step AceStepPipeline text-to-music",
        _ace_step_components,
        lambda: {
            **{"prompt": "slow piano", "lyrics": "soft notes in the morning"},
            **{"audio_duration": 1.0, "bpm": 90, "num_inference_steps": 2, "guidance_scale": 3.0},
        },
    ),
)
