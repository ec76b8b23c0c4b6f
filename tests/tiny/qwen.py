# SPDX-License-Identifier: Apache-2.0
"""Qwen-Image and Z-Image."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import flux_autoencoder, qwen_autoencoder
from tests.tiny.calls import REPAINT, SIZE, picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.media import draw_cutout, draw_mask, draw_picture
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, qwen3_encoder, qwen25_vl_encoder
from tests.tiny.tokenizers import qwen_tokenizer, qwen_vl_processor
from tests.tiny.weights import build_model


def _sizes() -> dict[str, Any]:
    return {
        **{"patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 1},
        **{"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": WIDTH},
        "axes_dims_rope": (8, 4, 4),
    }


def _transformer(**changes: Any) -> Any:
    return build_model("QwenImageTransformer2DModel", 50, **(_sizes() | changes))


_controlnet = partial(build_model, "QwenImageControlNetModel", 52, **_sizes())


def _components(**changes: Any) -> dict[str, Any]:
    parts = {
        **{"scheduler": flow_match, "vae": qwen_autoencoder, "text_encoder": qwen25_vl_encoder},
        **{"tokenizer": qwen_tokenizer, "transformer": _transformer},
    }
    return make_parts(**(parts | changes))


def _edit_components() -> dict[str, Any]:
    """Pictures to edit are scaled to one megapixel: the autoencoder shrinks them a lot."""
    return _components(processor=qwen_vl_processor, vae=partial(qwen_autoencoder, 6, 1))


def _layered_components() -> dict[str, Any]:
    """Pictures with an alpha channel, taken apart into layers."""
    return _components(
        processor=qwen_vl_processor,
        vae=partial(qwen_autoencoder, 6, 1, 8, input_channels=4),
        transformer=partial(
            _transformer,
            **{"in_channels": 32, "out_channels": 8, "use_additional_t_cond": True},
            use_layer3d_rope=True,
        ),
    )


def _call(**changes: Any) -> dict[str, Any]:
    base = {"true_cfg_scale": 2.0, "height": 64, "width": 96}
    return picture_call("guidance_scale", **(base | changes))


_z_image_transformer = partial(
    build_model,
    "ZImageTransformer2DModel",
    51,
    **{"all_patch_size": (2,), "all_f_patch_size": (1,), "in_channels": 4, "dim": 32},
    **{"n_layers": 1, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": WIDTH},
    **{"axes_dims": [8, 4, 4], "axes_lens": [512, 32, 32]},
)

_z_image_components = partial(
    make_parts,
    **{"scheduler": flow_match, "vae": flux_autoencoder, "text_encoder": qwen3_encoder},
    **{"tokenizer": qwen_tokenizer, "transformer": _z_image_transformer},
)


PIPELINES = (
    describe("qwen-image QwenImagePipeline text-to-image", _components, _call),
    describe(
        "qwen-image-img2img QwenImageImg2ImgPipeline image-to-image",
        _components,
        lambda: _call(image=draw_picture(31, 96, 64), **REPAINT),
    ),
    describe(
        "qwen-image-inpaint QwenImageInpaintPipeline inpaint",
        _components,
        lambda: _call(image=draw_picture(32, 96, 64), mask_image=draw_mask(96, 64), **REPAINT),
    ),
    describe(
        "qwen-image-edit QwenImageEditPipeline image-edit",
        _edit_components,
        lambda: _call(image=draw_picture(33, 48, 32), height=128, width=192),
    ),
    describe(
        "qwen-image-edit-plus QwenImageEditPlusPipeline image-edit",
        _edit_components,
        lambda: _call(
            image=[draw_picture(34, 48, 32), draw_picture(35, 32, 40)], height=128, width=192
        ),
    ),
    describe(
        "qwen-image-controlnet QwenImageControlNetPipeline controlnet",
        partial(_components, controlnet=_controlnet),
        lambda: _call(control_image=draw_picture(37, 96, 64), controlnet_conditioning_scale=0.8),
    ),
    describe(
        "qwen-image-layered QwenImageLayeredPipeline image-to-layers",
        _layered_components,
        lambda: picture_call(
            "guidance_scale", *SIZE, image=draw_cutout(38, 96, 64), true_cfg_scale=2.0, layers=2
        ),
    ),
    describe(
        "z-image ZImagePipeline text-to-image",
        _z_image_components,
        partial(picture_call, max_sequence_length=128),
    ),
    describe(
        "z-image-img2img ZImageImg2ImgPipeline image-to-image",
        _z_image_components,
        lambda: picture_call(image=draw_picture(36, 48), max_sequence_length=128, **REPAINT),
    ),
)
