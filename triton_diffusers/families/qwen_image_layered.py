# SPDX-License-Identifier: Apache-2.0
"""Qwen-Image-Layered: takes pictures apart into layers, and needs their alpha channel."""

from triton_diffusers.families import Family

FAMILY = Family(
    name="qwen_image_layered",
    pipelines=("QwenImageLayeredPipeline",),
    file_mode="RGBA",
)
