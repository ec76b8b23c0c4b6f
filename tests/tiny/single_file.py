# SPDX-License-Identifier: Apache-2.0
"""A tiny Stable Diffusion pipeline as one checkpoint with the names of its original code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RESNET = {
    **{"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1"},
    **{"norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"},
}
UNET_ENDS = {
    **{"conv_in": "input_blocks.0.0", "time_embedding.linear_1": "time_embed.0"},
    **{"time_embedding.linear_2": "time_embed.2", "conv_norm_out": "out.0", "conv_out": "out.2"},
    **{"mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1"},
    "mid_block.resnets.1": "middle_block.2",
}
VAE_PARTS = {
    **{"mid_block.resnets.0": "mid.block_1", "mid_block.attentions.0": "mid.attn_1"},
    **{"mid_block.resnets.1": "mid.block_2", "conv_norm_out": "norm_out", "group_norm": "norm"},
    **{"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"},
    "conv_shortcut": "nin_shortcut",
}


def save_single_file(pipeline: Any, path: Path) -> Path:
    """Write unet, vae and text encoder of a Stable Diffusion 1 pipeline into one file."""
    from safetensors.torch import save_file

    layers = pipeline.unet.config.layers_per_block
    levels = len(pipeline.vae.config.block_out_channels)
    weights = {_unet_name(n, layers): w for n, w in pipeline.unet.state_dict().items()}
    for name, weight in pipeline.vae.state_dict().items():
        is_linear = "mid_block.attentions" in name and weight.dim() == 2
        weights[_vae_name(name, levels)] = weight[..., None, None] if is_linear else weight
    for name, weight in pipeline.text_encoder.state_dict().items():
        inner = name.removeprefix("text_model.")
        weights[f"cond_stage_model.transformer.text_model.{inner}"] = weight
    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, path)
    return path


def _unet_name(name: str, layers: int) -> str:
    def down(found: re.Match[str]) -> str:
        at, part, layer = int(found[1]), found[2], int(found[3])
        first = at * (layers + 1) + 1
        if part == "downsamplers":
            return f"input_blocks.{first + layers}.0.op."
        return f"input_blocks.{first + layer}.{int(part == 'attentions')}."

    def up(found: re.Match[str]) -> str:
        at, part, layer = int(found[1]), found[2], int(found[3])
        first = at * (layers + 1)
        if part == "upsamplers":
            return f"output_blocks.{first + layers}.1.conv."
        return f"output_blocks.{first + layer}.{int(part == 'attentions')}."

    name = re.sub(r"down_blocks\.(\d+)\.(\w+)\.(\d+)\.(?:conv\.(?=\w+$))?", down, name)
    name = re.sub(r"up_blocks\.(\d+)\.(\w+)\.(\d+)\.(?:conv\.(?=\w+$))?", up, name)
    name = _replace_start(name, UNET_ENDS)
    if "transformer_blocks" not in name:
        for ours, theirs in RESNET.items():
            name = re.sub(rf"(?<=\.){ours}(?=\.\w+$)", theirs, name)
    return f"model.diffusion_model.{name}"


def _vae_name(name: str, levels: int) -> str:
    def up(found: re.Match[str]) -> str:
        part = "upsample" if found[2] == "upsamplers" else f"block.{found[3]}"
        return f"up.{levels - 1 - int(found[1])}.{part}."

    def down(found: re.Match[str]) -> str:
        part = "downsample" if found[2] == "downsamplers" else f"block.{found[3]}"
        return f"down.{found[1]}.{part}."

    name = re.sub(r"up_blocks\.(\d+)\.(\w+)\.(\d+)\.", up, name)
    name = re.sub(r"down_blocks\.(\d+)\.(\w+)\.(\d+)\.", down, name)
    for ours, theirs in VAE_PARTS.items():
        name = re.sub(rf"(?<=\.){re.escape(ours)}(?=\.)", theirs, name)
    return f"first_stage_model.{name}"


def _replace_start(name: str, table: dict[str, str]) -> str:
    for ours, theirs in table.items():
        if name.startswith(f"{ours}."):
            return theirs + name[len(ours) :]
    return name
