# SPDX-License-Identifier: Apache-2.0
"""Autoencoders of the tiny pipelines."""

from __future__ import annotations

from typing import Any

from tests.tiny.weights import build_model


def kl_autoencoder(
    levels: int = 2, seed: int = 10, model_class: type | None = None, **changes: Any
) -> Any:
    """AutoencoderKL or its like that shrinks a picture 2 ** (levels - 1) times."""
    from diffusers import AutoencoderKL

    config = {
        **{"block_out_channels": [8] * levels, "down_block_types": ["DownEncoderBlock2D"] * levels},
        **{"up_block_types": ["UpDecoderBlock2D"] * levels, "layers_per_block": 1},
        **{"latent_channels": 4, "norm_num_groups": 2, "sample_size": 32},
    }
    return build_model(model_class or AutoencoderKL, seed, **(config | changes))


def flux_autoencoder(levels: int = 2, seed: int = 10, **changes: Any) -> Any:
    """AutoencoderKL as newer checkpoints have it: latents shifted, no quantization layers."""
    newer = {"shift_factor": 0.1, "use_quant_conv": False, "use_post_quant_conv": False}
    return kl_autoencoder(levels, seed, **(newer | changes))


def wan_autoencoder(seed: int = 11) -> Any:
    """Wan's: 16 channels, 4 times shorter, 8 times smaller."""

    return build_model(
        "AutoencoderKLWan",
        seed,
        **{"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        temperal_downsample=[False, True, True],
    )


def qwen_autoencoder(
    levels: int = 4, base_dim: int = 4, z_dim: int = 4, seed: int = 12, **changes: Any
) -> Any:
    """Qwen-Image's: 2 ** (levels - 1) times smaller."""

    return build_model(
        "AutoencoderKLQwenImage",
        seed,
        **{"base_dim": base_dim, "z_dim": z_dim, "dim_mult": [1] + [4 // base_dim] * (levels - 1)},
        **{"num_res_blocks": 1, "temperal_downsample": [False, True] + [True] * (levels - 3)},
        **{"latents_mean": [0.0] * z_dim, "latents_std": [1.0] * z_dim},
        **changes,
    )
