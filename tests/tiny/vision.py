# SPDX-License-Identifier: Apache-2.0
"""Encoders of pictures, and what prepares pictures for them."""

from __future__ import annotations

from typing import Any

from tests.tiny.text_encoders import WIDTH
from tests.tiny.weights import randomize

SIZE = 32


def _vision_sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        **{"hidden_size": WIDTH, "intermediate_size": 37, "projection_dim": WIDTH},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": SIZE, "patch_size": 8},
    }
    return sizes | changes


def clip_image_processor(size: int = SIZE) -> Any:
    """CLIP's preprocessing with Pillow: works with and without torchvision."""
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}
    )


def clip_vision_encoder(seed: int = 8, **changes: Any) -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(**_vision_sizes(**changes))
    return randomize(CLIPVisionModelWithProjection(config), seed)


def safety_checker(seed: int = 9) -> Any:
    """Stable Diffusion's, which never objects: its thresholds stay at one."""
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig

    config = CLIPConfig(vision_config=_vision_sizes(), projection_dim=WIDTH)
    return randomize(StableDiffusionSafetyChecker(config), seed)
