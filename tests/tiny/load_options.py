# SPDX-License-Identifier: Apache-2.0
"""The files that load-time options name: a LoRA, a pipeline class, a single-file checkpoint."""

from __future__ import annotations

from pathlib import Path

from tests.tiny.single_file import save_single_file

OWN_PIPELINE = """
from diffusers import StableDiffusionPipeline
from .words import PREFIX

class MyPipeline(StableDiffusionPipeline):
    def __call__(self, prompt: str = "sea", height: int = 32, width: int = 32,
                 num_inference_steps: int = 2, generator=None, output_type: str = "pil"):
        return super().__call__(PREFIX + prompt, height=height, width=width,
            num_inference_steps=num_inference_steps, generator=generator, output_type=output_type)
"""
"""Draws what the plain pipeline draws; its relative import finds the file beside it."""


def write(models: Path) -> None:
    """Fill a folder: stable-diffusion, ddpm, lora/, code/ and one.safetensors."""
    from diffusers import StableDiffusionPipeline

    from tests.tiny import save

    for name in ("stable-diffusion", "ddpm"):
        save(name, models)
    pipeline = StableDiffusionPipeline.from_pretrained(models / "stable-diffusion")
    save_single_file(pipeline, models / "one.safetensors")
    save_lora(models)
    save_code(models / "code")


def save_lora(models: Path) -> Path:
    """Write an adapter with random weights for the unet of stable-diffusion; return its file."""
    from diffusers import StableDiffusionPipeline
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipeline = StableDiffusionPipeline.from_pretrained(models / "stable-diffusion")
    layers = LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False)
    pipeline.unet.add_adapter(layers)
    weights = convert_state_dict_to_diffusers(get_peft_model_state_dict(pipeline.unet))
    pipeline.save_lora_weights(models / "lora", unet_lora_layers=weights)
    return models / "lora" / "pytorch_lora_weights.safetensors"


def save_code(folder: Path) -> None:
    """Write a pipeline class of one's own."""
    folder.mkdir(exist_ok=True)
    (folder / "pipeline.py").write_text(OWN_PIPELINE)
    (folder / "words.py").write_text("PREFIX = ''\n")
