# SPDX-License-Identifier: Apache-2.0
"""Upscalers whose output is twice as high and wide as what goes in."""

from triton_diffusers.families import Family

FAMILY = Family(
    name="upscaler_x2",
    pipelines=(
        "StableDiffusionLatentUpscalePipeline",
        "LTXLatentUpsamplePipeline",
        "LTX2LatentUpsamplePipeline",
    ),
    upscale=2,
)
