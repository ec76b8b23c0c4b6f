# SPDX-License-Identifier: Apache-2.0
"""Settings of documented add-model commands reach from_pretrained() and the scheduler.

The command names a model of the hub; what it wrote is loaded with a tiny model of its class. So are
the examples of docs/load-options.md.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.entries.config_pbtxt import parse_config, read_parameters
from tests.tiny import save
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.arguments import load_kwargs
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.quantization.native import build_native
from triton_diffusers.quantization.request import read_quantization

GOLDEN = Path(__file__).parent.parent / "golden"
PAGE = (GOLDEN.parent.parent / "docs" / "load-options.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    """The code blocks of docs/load-options.md in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def _given(flag: str) -> list[str]:
    """The values that the command lines of the page give to a flag of add-model."""
    lines = [
        shlex.split(line) for line in PAGE.splitlines() if line.startswith("builder add-model")
    ]
    return [words[words.index(flag) + 1] for words in lines if flag in words]


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
    request = read_quantization(written, components, "QwenImagePipeline")
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


FLUX = {
    "transformer": "FluxTransformer2DModel",
    "text_encoder": "CLIPTextModel",
    "vae": "AutoencoderKL",
}


@pytest.mark.parametrize("block", _blocks("json"), ids=lambda block: block[2:15])
def test_diffusers_own_form_of_quantization(block: str, tmp_path: Path) -> None:
    given: dict[str, Any] = json.loads(block)
    request = read_quantization(
        ServeConfig(model="m", quantization_config=given), FLUX, "FluxPipeline"
    )
    assert request is not None
    build_native(request.form, FLUX)
    # layers of the tiny model are 16 wide
    small = json.loads(block.replace('"group_size": 32', '"group_size": 8'))
    model = str(save("flux", tmp_path))
    config = ServeConfig(model=model, quantization_config=small)
    told = load_pipeline(config, tmp_path, "cpu").facts["quantization"]
    assert told.keys() - {"method"} == {"transformer", "text_encoder"}


def test_both_of_diffusers_own_forms_are_shown() -> None:
    assert [next(iter(json.loads(block))) for block in _blocks("json")] == [
        *("quant_mapping", "quant_backend"),
    ]


@pytest.mark.parametrize("model", ["wan-t2v", "ltx", "qwen-image", "z-image", "sana"])
def test_one_type_for_each_component(model: str, tmp_path: Path) -> None:
    import torch

    (given,) = _given("--dtype")
    assert f"`{given}`" in PAGE
    config = ServeConfig(model=str(save(model, tmp_path)), dtype=json.loads(given))
    loaded = load_pipeline(config, tmp_path, "cpu")
    assert loaded.warnings == ()
    assert loaded.pipeline.vae.dtype == torch.float32
    assert loaded.pipeline.transformer.dtype == torch.bfloat16


@pytest.mark.parametrize("model", ["stable-diffusion", "flux"])
def test_pipelines_that_want_one_type_say_so(model: str, tmp_path: Path) -> None:
    (given,) = _given("--dtype")
    config = ServeConfig(model=str(save(model, tmp_path)), dtype=json.loads(given))
    with pytest.raises(ConfigError, match="'dtype'"):
        load_pipeline(config, tmp_path, "cpu")
    one = replace(config, dtype={"default": "bfloat16"})
    assert load_pipeline(one, tmp_path, "cpu").warnings == ()


def test_a_pipeline_class_of_ones_own(tmp_path: Path) -> None:
    (block,), (file,) = _blocks("python"), _given("--custom-pipeline")
    save("stable-diffusion", tmp_path)
    (tmp_path / file).write_text(block, encoding="utf-8")
    config = ServeConfig(model="stable-diffusion", custom_pipeline=file)
    loaded = load_pipeline(config, tmp_path, "cpu")
    assert loaded.warnings == ()
    assert list(loaded.signature.parameters) == ["prompt", "mood"]
    assert len(loaded.pipeline("a red fox", mood="calm").images) == 1


def test_what_diffusers_passes_over_is_accepted_and_does_nothing(tmp_path: Path) -> None:
    import numpy as np
    from diffusers import StableDiffusionPipeline

    named = re.search(r"diffusers itself passes over.*?(?=^- )", PAGE, re.MULTILINE | re.DOTALL)
    assert named is not None
    names = set(re.findall(r"`(\w+)`", named[0])) - {"diffusers_load_kwargs"}
    assert len(names) > 10
    given: dict[str, Any] = {name: str(tmp_path / "x") for name in names}
    given |= {"use_onnx": False, "local_files_only": True, "offload_state_dict": False}
    config = ServeConfig(model=str(save("stable-diffusion", tmp_path)))
    unusual = replace(config, diffusers_load_kwargs=given)
    assert names <= set(load_kwargs(unusual, StableDiffusionPipeline, "cpu"))
    drawn = [
        np.asarray(
            load_pipeline(c, tmp_path, "cpu")
            .pipeline("a fox", num_inference_steps=2, generator=_generator())
            .images[0]
        )
        for c in (config, unusual)
    ]
    assert np.array_equal(*drawn)


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(1)
