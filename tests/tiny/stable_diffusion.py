# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 1 and what was built on it."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import kl_autoencoder
from tests.tiny.calls import REPAINT, SIZE, picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_mask, draw_picture
from tests.tiny.schedulers import ddim
from tests.tiny.text_encoders import WIDTH, clip_text_encoder
from tests.tiny.tokenizers import clip_tokenizer
from tests.tiny.vision import clip_image_processor, clip_vision_encoder, safety_checker
from tests.tiny.weights import build_model


def _unet_config() -> dict[str, Any]:
    return {
        **{"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 2},
        **{"attention_head_dim": 4, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")},
        "cross_attention_dim": WIDTH,
    }


def unet(seed: int = 20, **changes: Any) -> Any:
    """UNet2DConditionModel with one attention level."""

    ups = {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "sample_size": 16}
    return build_model("UNet2DConditionModel", seed, **(_unet_config() | ups | changes))


def components(**changes: Any) -> dict[str, Any]:
    """The parts of a Stable Diffusion 1 pipeline without a safety checker."""
    parts = {
        **{"unet": unet, "scheduler": ddim, "vae": kl_autoencoder},
        **{"text_encoder": clip_text_encoder, "tokenizer": clip_tokenizer, "safety_checker": None},
        "feature_extractor": None,
    }
    return make_parts(**(parts | changes))


def bare_components(**changes: Any) -> dict[str, Any]:
    """The same for classes that know no safety checker."""
    parts = components(**changes)
    del parts["safety_checker"], parts["feature_extractor"]
    return parts


def _controlnet(seed: int = 21) -> Any:
    return build_model(
        "ControlNetModel", seed, conditioning_embedding_out_channels=(8, 16), **_unet_config()
    )


_adapter = partial(
    build_model,
    "T2IAdapter",
    26,
    **{"channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 2},
)


def _adapter_components() -> dict[str, Any]:
    """Its maps are added inside attention blocks: those come first here."""
    attention_first = partial(
        unet,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return components(unet=attention_first, adapter=_adapter)


def _consistency_components() -> dict[str, Any]:
    from diffusers import LCMScheduler

    return components(unet=partial(unet, time_cond_proj_dim=8), scheduler=LCMScheduler)


def _upscale_components() -> dict[str, Any]:
    from diffusers import DDPMScheduler

    parts = bare_components(unet=partial(unet, in_channels=7, num_class_embeds=400))
    return parts | {"low_res_scheduler": DDPMScheduler()}


def _latent_upscale_components() -> dict[str, Any]:
    from diffusers import EulerDiscreteScheduler

    k_blocks = {
        **{"act_fn": "gelu", "norm_num_groups": None, "conv_in_kernel": 1, "conv_out_kernel": 1},
        "down_block_types": ("KDownBlock2D", *3 * ("KCrossAttnDownBlock2D",)),
        "up_block_types": (*3 * ("KCrossAttnUpBlock2D",), "KUpBlock2D"),
        **{"block_out_channels": (32, 32, 64, 64), "attention_head_dim": 8, "mid_block_type": None},
        **{"in_channels": 8, "out_channels": 5, "resnet_time_scale_shift": "scale_shift"},
        **{"time_embedding_type": "fourier", "timestep_post_act": "gelu"},
        "time_cond_proj_dim": 128 + WIDTH,
    }
    return bare_components(
        unet=partial(unet, **k_blocks),
        scheduler=EulerDiscreteScheduler(prediction_type="sample"),
        vae=partial(kl_autoencoder, 4),
        text_encoder=clip_text_encoder,
    )


def _variation_components() -> dict[str, Any]:
    parts = components(image_encoder=clip_vision_encoder, feature_extractor=clip_image_processor)
    del parts["text_encoder"], parts["tokenizer"]
    return parts


PIPELINES = (
    describe("stable-diffusion StableDiffusionPipeline text-to-image", components, picture_call),
    describe(
        "stable-diffusion-checked StableDiffusionPipeline text-to-image",
        partial(components, safety_checker=safety_checker, feature_extractor=clip_image_processor),
        picture_call,
    ),
    describe(
        "stable-diffusion-img2img StableDiffusionImg2ImgPipeline image-to-image",
        components,
        lambda: picture_call(*SIZE, image=draw_picture(1, 48), **REPAINT),
    ),
    describe(
        "stable-diffusion-inpaint StableDiffusionInpaintPipeline inpaint",
        partial(components, unet=partial(unet, in_channels=9)),
        lambda: picture_call(image=draw_picture(2, 48), mask_image=draw_mask(48)),
    ),
    describe(
        "stable-diffusion-controlnet StableDiffusionControlNetPipeline controlnet",
        partial(components, controlnet=_controlnet),
        lambda: picture_call(image=draw_picture(3, 48), controlnet_conditioning_scale=0.7),
    ),
    describe(
        "stable-diffusion-two-controlnets StableDiffusionControlNetPipeline controlnet",
        lambda: components(controlnet=[_controlnet(), _controlnet(24)]),
        lambda: picture_call(
            image=[draw_picture(8, 48), draw_picture(9, 48)],
            controlnet_conditioning_scale=[0.7, 0.4],
            control_guidance_end=[1.0, 0.6],
        ),
    ),
    describe(
        "stable-diffusion-adapter StableDiffusionAdapterPipeline controlnet",
        _adapter_components,
        lambda: picture_call(image=draw_picture(10, 48), adapter_conditioning_scale=0.7),
    ),
    describe(
        "stable-diffusion-pag StableDiffusionPAGPipeline text-to-image",
        partial(components, pag_applied_layers=["mid"]),
        partial(picture_call, pag_scale=2.5),
    ),
    describe(
        "stable-diffusion-instruct-pix2pix StableDiffusionInstructPix2PixPipeline image-edit",
        partial(components, unet=partial(unet, in_channels=8)),
        lambda: picture_call(*SIZE, image=draw_picture(4, 48), image_guidance_scale=1.3),
    ),
    describe(
        "stable-diffusion-upscale StableDiffusionUpscalePipeline upscale",
        _upscale_components,
        lambda: picture_call(*SIZE, image=draw_picture(5, 24, 16), noise_level=20),
    ),
    describe(
        "stable-diffusion-latent-upscale StableDiffusionLatentUpscalePipeline upscale",
        _latent_upscale_components,
        lambda: picture_call(*SIZE, image=draw_picture(6, 128, 64)),
    ),
    describe(
        "stable-diffusion-image-variation StableDiffusionImageVariationPipeline image-to-image",
        _variation_components,
        lambda: picture_call("prompt", "negative_prompt", image=draw_picture(7, 48)),
    ),
    describe(
        "stable-diffusion-ldm3d StableDiffusionLDM3DPipeline text-to-image-and-depth",
        partial(
            components,
            vae=partial(kl_autoencoder, in_channels=6, out_channels=6),
            image_encoder=None,
        ),
        picture_call,
    ),
    describe(
        "latent-consistency LatentConsistencyModelPipeline text-to-image",
        _consistency_components,
        partial(picture_call, "negative_prompt"),
    ),
)
