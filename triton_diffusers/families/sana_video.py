# SPDX-License-Identifier: Apache-2.0
"""SANA-Video: its count of frames is called `frames`; every other pipeline says `num_frames`."""

from triton_diffusers.families import Family

FAMILY = Family(
    name="sana_video",
    pipelines=("SanaVideoPipeline", "SanaImageToVideoPipeline"),
    aliases={"num_frames": "frames"},
    fps=16,
)
