# SPDX-License-Identifier: Apache-2.0
"""Autoencoders of the tiny pipelines."""

from __future__ import annotations

from typing import Any

from tests.tiny.weights import build_model


def kl_autoencoder(levels: int = 2, seed: int = 10, **changes: Any) -> Any:
    """AutoencoderKL that shrinks a picture 2 ** (levels - 1) times."""
    from diffusers import AutoencoderKL

    config = {
        "block_out_channels": [8] * levels,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 2,
        "sample_size": 32,
    }
    return build_model(AutoencoderKL, seed, **(config | changes))


def wan_autoencoder(seed: int = 11) -> Any:
    """Wan's: 16 channels, 4 times shorter, 8 times smaller."""
    from diffusers import AutoencoderKLWan

    return build_model(
        AutoencoderKLWan,
        seed,
        base_dim=3,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
