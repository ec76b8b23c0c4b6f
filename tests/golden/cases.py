# SPDX-License-Identifier: Apache-2.0
"""The entries that are compared, and the script that writes them again after a wanted change:

python -m tests.golden.cases
"""

import shlex
from pathlib import Path

from builder import main as builder
from builder.commands.add_model import build_entry
from builder.entries.config_pbtxt import (
    MODEL_PY,
    Entry,
    parse_config,
    read_parameters,
    render_config,
)

HERE = Path(__file__).parent
DEMO = HERE.parent.parent / "model_repository" / "demo"

CASES = {
    "qwen-image": "Qwen/Qwen-Image",
    "z-image-turbo": "Tongyi-MAI/Z-Image-Turbo --dtype bfloat16 --gpus 0",
    "wan2.2-i2v-a14b-diffusers": (
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers --boundary-ratio 0.9 --flow-shift 3.0 --decoupled"
        """ --diffusers-call-kwargs '{"negative_prompt": "色调, \\"blurry\\"", "num_frames": 81}'"""
    ),
    "wan2.2-t2v-a14b-diffusers": (
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers --boundary-ratio 0.875 --flow-shift 3 --vae-use-tiling"
    ),
    "qwen-image-fp8": (
        """Qwen/Qwen-Image --quantization-config '{"method": "fp8"}' --torch-compile regional"""
        " --attention-backend auto --warmup 1328x1328,1664x928"
    ),
    "qwen-image-offloaded": (
        "Qwen/Qwen-Image --enable-group-offload leaf_level"
        """ --dtype '{"default": "bfloat16", "vae": "float32"}'"""
        """ --lora '[{"path": "owner/style", "weight_name": "a.safetensors", "scale": 0.8}]'"""
    ),
    "stable-diffusion-v1-5": (
        "stable-diffusion-v1-5/stable-diffusion-v1-5 --variant fp16 --device cuda:1"
        """ --diffusers-load-kwargs '{"use_safetensors": true}' --instances 2"""
    ),
}
"""Name -> arguments of add-model. The demo's entry is compared where it ships."""

FOLDERS = {name: HERE / name for name in CASES} | {"demo": DEMO}


def build(name: str) -> Entry:
    """Build an entry as `builder add-model` does."""
    words = _demo_words() if name == "demo" else [*shlex.split(CASES[name]), "--name", name]
    args = builder.parse(["add-model", *words])
    entry, _ = build_entry(args, name, FOLDERS[name])
    return entry


def files(name: str) -> dict[str, str]:
    """Return the files of an entry by path."""
    return {"config.pbtxt": render_config(build(name)), "1/model.py": MODEL_PY}


def _demo_words() -> list[str]:
    message = parse_config((DEMO / "config.pbtxt").read_text(encoding="utf-8"))
    kwargs = read_parameters(message)["diffusers_call_kwargs"]
    options = ["--diffusers-call-kwargs", kwargs, "--cpu-threads", "1"]
    return [str(DEMO / "pipeline"), "--name", "demo", *options]


def write_all() -> None:
    """Write every golden file again."""
    for name in FOLDERS:
        for path, text in files(name).items():
            target = FOLDERS[name] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(target)


if __name__ == "__main__":
    write_all()
