# SPDX-License-Identifier: Apache-2.0
"""Models whose pipeline class is known without asking the hub."""

KNOWN_MODELS = {
    "Qwen/Qwen-Image": "QwenImagePipeline",
    "Tongyi-MAI/Z-Image-Turbo": "ZImagePipeline",
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": "WanImageToVideoPipeline",
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": "WanPipeline",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "StableDiffusionPipeline",
}
