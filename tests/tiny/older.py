# SPDX-License-Identifier: Apache-2.0
"""Classes that diffusers has retired but still loads, chosen for unusual arguments or results."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny import stable_diffusion, unconditional
from tests.tiny.autoencoders import kl_autoencoder
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_mask, draw_picture
from tests.tiny.text_encoders import WIDTH, clip_text_encoder
from tests.tiny.tokenizers import VOCAB_SIZE, clip_tokenizer, gpt2_tokenizer
from tests.tiny.vision import clip_image_processor, clip_vision_encoder
from tests.tiny.weights import build_model


def _gligen_components() -> dict[str, Any]:
    return stable_diffusion.components(unet=partial(stable_diffusion.unet, attention_type="gated"))


def _text_decoder() -> Any:
    from torch.nn import Parameter

    decoder = build_model(
        "UniDiffuserTextDecoder",
        180,
        **{"prefix_length": 77, "prefix_inner_dim": WIDTH, "prefix_hidden_dim": WIDTH},
        **{"vocab_size": VOCAB_SIZE, "n_positions": 256, "n_embd": WIDTH, "n_layer": 1},
        n_head=2,
    )
    head = decoder.transformer.lm_head
    head.weight = Parameter(head.weight.clone())  # safetensors refuses tied weights
    return decoder


def _unidiffuser_components() -> dict[str, Any]:
    from diffusers import DPMSolverMultistepScheduler

    return make_parts(
        **{"vae": kl_autoencoder, "text_encoder": clip_text_encoder},
        **{"clip_tokenizer": clip_tokenizer, "image_encoder": clip_vision_encoder},
        **{"clip_image_processor": clip_image_processor, "text_tokenizer": gpt2_tokenizer},
        text_decoder=_text_decoder,
        unet=partial(
            build_model,
            "UniDiffuserModel",
            181,
            **{"text_dim": WIDTH, "clip_img_dim": WIDTH, "num_text_tokens": 77},
            **{"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4},
            **{"out_channels": 4, "num_layers": 2, "sample_size": 16, "patch_size": 2},
            **{"activation_fn": "gelu", "num_embeds_ada_norm": 1000, "norm_type": "layer_norm"},
            use_patch_pos_embed=True,
        ),
        scheduler=partial(
            DPMSolverMultistepScheduler, beta_schedule="scaled_linear", solver_order=3
        ),
    )


def _dance_components() -> dict[str, Any]:
    from diffusers import IPNDMScheduler

    return make_parts(
        scheduler=IPNDMScheduler,
        unet=partial(
            build_model,
            "UNet1DModel",
            182,
            **{"sample_size": 512, "sample_rate": 1600, "extra_in_channels": 64},
            block_out_channels=(32, 32),
            down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
            **{"up_block_types": ("UpBlock1D", "UpBlock1DNoSkip"), "use_timestep_embedding": False},
        ),
    )


def _repaint_components() -> dict[str, Any]:
    from diffusers import RePaintScheduler

    return make_parts(unet=unconditional.unet, scheduler=RePaintScheduler)


PIPELINES = (
    describe(
        "stable-diffusion-gligen StableDiffusionGLIGENPipeline layout-to-image",
        _gligen_components,
        lambda: picture_call(
            gligen_phrases=["a fox", "a tree"],
            gligen_boxes=[[0.1, 0.2, 0.5, 0.9], [0.6, 0.1, 0.9, 0.8]],
            gligen_scheduled_sampling_beta=0.9,
        ),
    ),
    describe(
        "unidiffuser UniDiffuserPipeline text-and-image",
        _unidiffuser_components,
        lambda: {"num_inference_steps": 2, "guidance_scale": 3.0},
    ),
    describe(
        "dance-diffusion DanceDiffusionPipeline unconditional-audio",
        _dance_components,
        lambda: {"batch_size": 2, "num_inference_steps": 4, "audio_length_in_s": 0.25},
    ),
    describe(
        "repaint RePaintPipeline inpaint",
        _repaint_components,
        lambda: {
            **{"image": draw_picture(91), "mask_image": draw_mask(), "num_inference_steps": 4},
            **{"jump_length": 2, "jump_n_sample": 2},
        },
    ),
)
