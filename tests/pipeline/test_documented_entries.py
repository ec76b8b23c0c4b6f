# SPDX-License-Identifier: Apache-2.0
"""Settings of documented add-model commands reach from_pretrained() and the scheduler.

The command names a model of the hub; what it wrote is loaded with a tiny model of its class.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.entry import parse_config, read_parameters
from tests.tiny import save
from triton_diffusers.config import ServeConfig
from triton_diffusers.loading import load_pipeline
from triton_diffusers.quantization_native import build_native
from triton_diffusers.quantization_request import read_request

GOLDEN = Path(__file__).parent.parent / "golden"


def _written(name: str) -> ServeConfig:
    message = parse_config((GOLDEN / name / "config.pbtxt").read_text(encoding="utf-8"))
    return ServeConfig.from_parameters(read_parameters(message))


def test_wan_boundary_ratio_and_flow_shift(tmp_path: Path) -> None:
    from diffusers import UniPCMultistepScheduler, WanPipeline

    written = _written("wan2.2-t2v-a14b-diffusers")
    config = replace(written, model=str(save("wan22-t2v", tmp_path)))
    pipeline = load_pipeline(config, tmp_path, "cpu").pipeline
    assert type(pipeline) is WanPipeline
    assert pipeline.config.boundary_ratio == 0.875
    assert type(pipeline.scheduler) is UniPCMultistepScheduler
    assert pipeline.scheduler.config.flow_shift == 3.0
    assert pipeline.vae.use_tiling


def test_qwen_image_in_fp8(tmp_path: Path) -> None:
    """fp8 dynamic needs a GPU: here its config is built, and weight-only fp8 is loaded."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig

    written = _written("qwen-image-fp8")
    components = {"transformer": "QwenImageTransformer2DModel", "vae": "AutoencoderKLQwenImage"}
    request = read_request(written, components, "QwenImagePipeline")
    assert request is not None
    mapping = build_native(request.form, components).quant_mapping
    assert list(mapping) == ["transformer"]
    quant_type = mapping["transformer"].quant_type
    assert type(quant_type) is Float8DynamicActivationFloat8WeightConfig
    here = replace(
        written,
        model=str(save("qwen-image", tmp_path)),
        quantization_config={"method": "fp8_weight_only"},
        torch_compile="off",
        warmup="32x32",
    )
    loaded = load_pipeline(here, tmp_path, "cpu")
    held = loaded.facts["quantization"]["transformer"]
    assert held["bytes"] < held["bytes_before"]
    assert loaded.facts["attention_backend"] == "native"
