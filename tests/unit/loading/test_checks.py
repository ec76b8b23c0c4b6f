# SPDX-License-Identifier: Apache-2.0
"""What `check` and `add-model` tell from files and packages, without loading any weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder import console
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading import features
from triton_diffusers.loading.features import check_alone
from triton_diffusers.loading.plan import plan_load

SD = {
    "_class_name": "StableDiffusionPipeline",
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": [None, None],
}
SDXL = SD | {
    "_class_name": "StableDiffusionXLPipeline",
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
}


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    (tmp_path / "model" / "unet").mkdir(parents=True)
    write_index(tmp_path, SD)
    return tmp_path


def write_index(entry: Path, index: dict) -> None:
    (entry / "model" / "model_index.json").write_text(json.dumps(index))


def check(entry: Path, cls: str = "StableDiffusionPipeline", **options) -> list[str]:
    config = ServeConfig(model="model", pipeline_class=cls, **options)
    return features.check(plan_load(config, entry))


def refusal(entry: Path, cls: str = "StableDiffusionPipeline", **options) -> str:
    with pytest.raises(ConfigError) as refused:
        check(entry, cls, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_nothing_is_wrong(entry):
    assert check(entry) == []


def test_the_index_is_read_once(entry, monkeypatch):
    read = []
    read_text = Path.read_text

    def counting(file: Path, **kwargs) -> str:
        read.append(file.name)
        return read_text(file, **kwargs)

    monkeypatch.setattr(Path, "read_text", counting)
    config = ServeConfig(model="model", vae_use_slicing=True, quantization_config="int8")
    features.check(plan_load(config, entry))
    assert read.count("model_index.json") == 1


def native(**config) -> dict:
    return {"quantization_config": {"quant_mapping": {"unet": config}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfg"},
            "Did you mean 'Int8WeightOnlyConfig'?",
        ),
        ({"quant_method": "torchao"}, "torchao needs quant_type"),
        ({"quant_method": "torcho", "quant_type": "x"}, "Did you mean 'torchao'?"),
        ({"quant_method": "bitsandbytes"}, "load_in_8bit or load_in_4bit"),
        ({"quant_method": "quanto", "weights_dtype": "int8"}, "pip install optimum-quanto"),
    ],
)
def test_quantization_in_diffusers_own_form(entry, config, message):
    where = "diffusers_load_kwargs.quantization_config: component 'unet': "
    told = refusal(entry, diffusers_load_kwargs=native(**config))
    assert told.startswith(where)
    assert message in told
    assert message in refusal(entry, **native(**config))


def test_quantization_that_fits(entry):
    config = {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}
    assert check(entry, **native(**config)) == []
    assert check(entry, quantization_config="int8_weight_only") == []


def test_a_variant_that_is_not_there(entry):
    weights = entry / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    assert check(entry, variant="fp16") == []  # no weights at all: nothing can be told
    weights.touch()
    assert "has no files such as model.fp16.safetensors; it has no variants: remove it" in refusal(
        entry, variant="fp16"
    )
    weights.with_suffix(".bf16.safetensors").touch()
    assert refusal(entry, variant="fp16").endswith("it has: bf16")
    assert check(entry, variant="bf16") == []


def test_components_that_the_class_needs(entry):
    told = refusal(entry, "StableDiffusionControlNetPipeline")
    assert "has no controlnet, which StableDiffusionControlNetPipeline cannot do" in told
    assert "model_index.json names StableDiffusionPipeline: remove pipeline_class" in told
    write_index(entry, {n: v for n, v in SD.items() if n != "vae"} | {"unet": [None, None]})
    told = refusal(entry)
    assert "has no unet, vae, which StableDiffusionPipeline cannot do without; copy" in told


def test_components_that_the_class_leaves_out_are_warned_of(entry):
    write_index(entry, SDXL)
    assert check(entry, "StableDiffusionXLPipeline") == []
    assert check(entry, "StableDiffusionXLImg2ImgPipeline") == []
    (note,) = check(entry, "StableDiffusionPipeline")
    assert "StableDiffusionPipeline does not use text_encoder_2, tokenizer_2" in note
    assert "model_index.json names StableDiffusionXLPipeline" in note


@pytest.mark.parametrize("given", ["auto", "sequential", "balnced"])
def test_device_maps_that_diffusers_does_not_know(entry, given):
    told = refusal(entry, device_map=given)
    assert f"device_map '{given}' is not known to diffusers." in told
    assert "Accepted: balanced, cpu, cuda" in told
    assert told == refusal(entry, diffusers_load_kwargs={"device_map": given})
    for accepted in ("balanced", "cuda", "cpu"):
        assert check(entry, device_map=accepted) == []


def test_a_folder_of_several_adapters(entry):
    folder = entry / "style"
    folder.mkdir()
    assert "'style' holds no .safetensors or .bin file" in refusal(entry, lora="style")
    for name in ("b.safetensors", "a.safetensors", "optimizer.safetensors", "c.bin"):
        (folder / name).touch()
    told = refusal(entry, lora="style")
    assert "'style' holds several files: a.safetensors, b.safetensors; say which one" in told
    assert '{"path": "style", "weight_name": "a.safetensors"}' in told
    assert check(entry, lora={"path": "style", "weight_name": "b.safetensors"}) == []
    assert "Did you mean 'b.safetensors'?" in refusal(
        entry, lora={"path": "style", "weight_name": "bb.safetensors"}
    )
    (folder / "pytorch_lora_weights.safetensors").touch()
    assert check(entry, lora="style") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_map": "balanced", "enable_cpu_offload": True}, "both place the weights"),
        ({"enable_cpu_offload": True, "device": "cpu"}, "needs a GPU"),
        ({"layerwise_casting": "float8_e4m3fn", "quantization_config": "int8"}, "be combined"),
        ({"warmup": "512"}, "parameter 'warmup': '512' is no size"),
        ({"lora": {"pth": "x"}}, "parameter 'lora'"),
        ({"quantization_config": "int9"}, "parameter 'quantization_config': method 'int9'"),
        ({"quantization_config": {"method": "int9"}}, "Did you mean"),
    ],
)
def test_what_needs_no_pipeline_is_told_first(options, message):
    with pytest.raises(ConfigError, match=message):
        check_alone(ServeConfig(model="m", **options))


def test_what_needs_no_pipeline_needs_no_import():
    code = (
        "import sys; from triton_diffusers.loading.features import check_alone;"
        "from triton_diffusers.config.options import ServeConfig;"
        "check_alone(ServeConfig(model='m', lora='x', quantization_config='int8',"
        " warmup='8x8'));"
        "print([n for n in ('torch', 'diffusers', 'transformers') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_a_spinner_is_shown_at_once_and_only_one(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.busy("checking tiny"), console.busy("importing diffusers"):
        shown = capsys.readouterr().err
    assert "checking tiny" in shown
    assert "importing" not in shown
