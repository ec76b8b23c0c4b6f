# SPDX-License-Identifier: Apache-2.0
"""EasyAnimate: its videos are tensors with the channels before the frames, its masks 0-255."""

from typing import Any

from triton_diffusers.families import Family


def _video_tensor(name: str, frames: list[Any]) -> Any:
    """Return float32 [1, C, F, H, W]: pictures 0..1 with 3 channels, masks 0..255 with one.

    Source: diffusers.pipelines.easyanimate, get_video_to_video_latent.
    """
    import numpy as np
    import torch

    if "mask" in name:
        pixels = np.stack([np.asarray(f.convert("L")) for f in frames])[..., None]
        scale = 1.0
    else:
        pixels, scale = np.stack([np.asarray(f.convert("RGB")) for f in frames]), 255.0
    return torch.from_numpy(pixels).permute(3, 0, 1, 2)[None].float() / scale


FAMILY = Family(name="easyanimate", pipelines=("EasyAnimate*",), video_tensor=_video_tensor)
