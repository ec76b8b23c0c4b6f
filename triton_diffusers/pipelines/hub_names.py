# SPDX-License-Identifier: Apache-2.0
"""Names of models without their owner -> the hub id: whose models begin like that."""

OWNERS = {
    "AuraFlow": "fal",
    "Chroma": "lodestones",
    "CogVideoX": "zai-org",
    "CogView": "zai-org",
    "Cosmos": "nvidia",
    "FLUX.1": "black-forest-labs",
    "FLUX.2": "black-forest-labs",
    "GLM-Image": "zai-org",
    "HiDream": "HiDream-ai",
    "HunyuanDiT": "Tencent-Hunyuan",
    "HunyuanImage": "hunyuanvideo-community",
    "HunyuanVideo": "hunyuanvideo-community",
    "Kandinsky-5": "kandinskylab",
    "kandinsky-": "kandinsky-community",
    "Kolors": "Kwai-Kolors",
    "LongCat": "meituan-longcat",
    "LTX-": "Lightricks",
    "Lumina": "Alpha-VLLM",
    "mochi-1": "genmo",
    "OmniGen": "Shitao",
    "Ovis-Image": "AIDC-AI",
    "PixArt": "PixArt-alpha",
    "Qwen-Image": "Qwen",
    "Sana_": "Efficient-Large-Model",
    "SANA-": "Efficient-Large-Model",
    "SANA1.": "Efficient-Large-Model",
    "sd-turbo": "stabilityai",
    "sdxl-turbo": "stabilityai",
    "SkyReels": "Skywork",
    "stable-audio": "stabilityai",
    "stable-cascade": "stabilityai",
    "stable-diffusion-3": "stabilityai",
    "stable-diffusion-v1-5": "stable-diffusion-v1-5",
    "stable-diffusion-xl": "stabilityai",
    "stable-video": "stabilityai",
    "Wan2": "Wan-AI",
    "Z-Image": "Tongyi-MAI",
}
"""How names of an organisation's models begin -> the organisation, as the hub spells it."""


def hub_id(name: str) -> str | None:
    """Return the id of a model that is named without its owner; None where nobody is known."""
    if "/" in name:
        return None
    found = [(len(begin), begin) for begin in OWNERS if name.lower().startswith(begin.lower())]
    return f"{OWNERS[max(found)[1]]}/{name}" if found else None
