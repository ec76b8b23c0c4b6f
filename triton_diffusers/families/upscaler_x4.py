# SPDX-License-Identifier: Apache-2.0
"""Upscalers whose output is four times as high and wide as the picture."""

from triton_diffusers.families import Family

FAMILY = Family(
    name="upscaler_x4",
    pipelines=(
        "StableDiffusionUpscalePipeline",
        "LDMSuperResolutionPipeline",
    ),
    upscale=4,
)
