# SPDX-License-Identifier: Apache-2.0
"""Pipelines quantized for real on the CPU: tiny ones, and the demo model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import draw, read_digits
from tests.tiny import save
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.quantization.plan import Quantization, plan_quantization, verify_quantization
from triton_diffusers.quantization.weight_bytes import count_bytes, is_quantized

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "model_repository" / "demo" / "pipeline"
ON_THE_CPU = ("int8", "int8_weight_only", "fp8_weight_only")
QUANTIZED = {
    "stable-diffusion": ("unet",),
    "flux": ("transformer",),
    "wan-t2v": ("transformer",),
    "wan22-t2v": ("transformer", "transformer_2"),
}
TORCHAO = {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}
PER_GROUP = (
    '"quant_type": "Int8WeightOnlyConfig", "quant_type_kwargs": '
    '{"granularity": {"_type": "PerGroup", "_data": {"group_size": %d}}}'
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models; it stands for the entry's folder too."""
    folder = tmp_path_factory.mktemp("models")
    for name in (*QUANTIZED, "ddpm"):
        save(name, folder)
    return folder


def _load(models: Path, model: str, quantization: Any = None, **options: Any) -> LoadedPipeline:
    config = ServeConfig(model=model, quantization_config=quantization, **options)
    return load_pipeline(config, models, "cpu")


def _native(quantization: Any) -> dict[str, Any]:
    return {"diffusers_load_kwargs": {"quantization_config": quantization}}


def _refusal(models: Path, model: str, quantization: Any = None, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        _load(models, model, quantization, **options)
    text = str(refused.value)
    assert "\n" not in text
    return text


def _draw(loaded: LoadedPipeline, **inputs: Any) -> np.ndarray:
    """Run one request; return the pictures or frames as float32, 0-255."""
    if loaded.signature.pipeline_class.startswith("Wan"):
        inputs = {"num_frames": 5, "max_sequence_length": 16} | inputs
    return draw(loaded, **inputs).astype(np.float32)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())


@pytest.fixture(scope="module")
def plain(models: Path) -> dict[str, LoadedPipeline]:
    return {name: _load(models, name) for name in QUANTIZED}


@pytest.mark.parametrize("method", ON_THE_CPU)
@pytest.mark.parametrize("model", QUANTIZED)
def test_a_quantized_pipeline_draws_nearly_the_same(
    models: Path, plain: dict[str, LoadedPipeline], model: str, method: str
) -> None:
    loaded = _load(models, model, method)
    drawn, expected = _draw(loaded), _draw(plain[model])
    assert drawn.std() > 0
    assert np.array_equal(drawn, _draw(loaded))
    assert not np.array_equal(drawn, expected)
    assert _distance(drawn, expected) < 0.5 * _distance(_draw(plain[model], seed=2), expected)

    told = loaded.facts["quantization"]
    assert told["method"].startswith(f"{method} (torchao ")
    assert told.keys() - {"method"} == set(QUANTIZED[model])
    for component in QUANTIZED[model]:
        unquantized = count_bytes(getattr(plain[model].pipeline, component))
        assert unquantized.quantized == 0
        assert told[component]["bytes_before"] == unquantized.before == unquantized.after
        assert told[component]["bytes"] < 0.8 * unquantized.after
    assert count_bytes(loaded.pipeline.vae).quantized == 0
    warned = any("torch_compile" in text for text in loaded.warnings)
    assert warned == (method == "int8")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", ON_THE_CPU)
def test_methods_go_with_half_precision(models: Path, method: str, dtype: str) -> None:
    half, quantized = _load(models, "flux", dtype=dtype), _load(models, "flux", method, dtype=dtype)
    difference = _distance(_draw(quantized), _draw(half))
    assert 0 < difference < 0.5 * _distance(_draw(half, seed=2), _draw(half))


@pytest.mark.parametrize("method", [None, *ON_THE_CPU])
def test_the_demos_digits_stay_legible(method: str | None) -> None:
    loaded = _load(DEMO, str(DEMO), method)
    assert read_digits(loaded.pipeline) == list(range(10))
    if method:
        sizes = loaded.facts["quantization"]["transformer"]
        assert sizes["bytes"] < 0.27 * sizes["bytes_before"]


@pytest.mark.parametrize("method", ON_THE_CPU)
def test_inference_mode_is_no_trouble_to_this_torchao(models: Path, method: str) -> None:
    """Pipelines run under no_grad, which works with any torchao; some versions fail under this."""
    import torch

    loaded = _load(models, "flux", method)
    expected = _draw(loaded)
    with torch.inference_mode():
        assert np.array_equal(_draw(loaded), expected)


def test_pipelines_run_without_gradients_and_not_in_inference_mode(models: Path) -> None:
    import torch

    loaded, seen = _load(models, "flux", "int8"), []
    loaded.pipeline.transformer.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    _draw(loaded)
    assert set(seen) == {(False, False)}


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_mapping": {"transformer": TORCHAO}},
        {
            "quant_backend": "torchao",
            "quant_kwargs": {"quant_type": "Int8WeightOnlyConfig"},
            "components_to_quantize": "transformer",
        },
        {
            "quant_mapping": {
                "transformer": {
                    "quant_method": "torchao",
                    "quant_type": {
                        "default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}
                    },
                }
            }
        },
    ],
    ids=["mapping", "backend", "serialized"],
)
def test_native_forms_do_what_the_short_form_does(models: Path, quantization: Any) -> None:
    expected = _draw(_load(models, "flux", "int8_weight_only"))
    for options in (_native(quantization), {"quantization_config": quantization}):
        loaded = load_pipeline(ServeConfig(model="flux", **options), models, "cpu")
        assert np.array_equal(_draw(loaded), expected)
        assert loaded.facts["quantization"]["method"] == "torchao Int8WeightOnlyConfig"
        assert not loaded.warnings


def test_arguments_of_torchao_come_from_json(models: Path) -> None:
    import torch

    arguments = {"weight_dtype": "torch.float8_e5m2", "granularity": "PerTensor"}
    given = {
        "quant_method": "torchao",
        "quant_type": "Float8WeightOnlyConfig",
        "quant_type_kwargs": arguments,
        "modules_to_not_convert": ["x_embedder"],
    }
    loaded = _load(models, "flux", **_native({"quant_mapping": {"transformer": given}}))
    transformer = loaded.pipeline.transformer
    assert not is_quantized("weight", transformer.x_embedder.weight)
    weight = transformer.context_embedder.weight
    assert weight.qdata.dtype == torch.float8_e5m2
    assert weight.scale.numel() == 1

    given = TORCHAO | {
        "quant_type_kwargs": {"granularity": {"_type": "PerGroup", "_data": {"group_size": 8}}},
        "modules_to_not_convert": ["proj_out", "x_embedder"],
    }
    mapping = {"quant_mapping": {"transformer": given}}
    plan = plan_quantization(
        ServeConfig(model="m", **_native(mapping)),
        {"transformer": "FluxTransformer2DModel"},
        "",
        "cpu",
    )
    assert plan is not None
    assert plan.config.quant_mapping["transformer"].quant_type.granularity.group_size == 8


def test_each_component_gets_the_config_of_its_library(models: Path) -> None:
    import diffusers
    import transformers

    mapping = dict.fromkeys(("transformer", "text_encoder", "text_encoder_2"), TORCHAO)
    config = ServeConfig(model="flux", **_native({"quant_mapping": mapping}))
    loaded = load_pipeline(config, models, "cpu")
    assert set(loaded.facts["quantization"]) == {"method", *mapping}
    assert _draw(loaded).std() > 0
    made = loaded.pipeline.quantization_config.quant_mapping
    assert isinstance(made["transformer"], diffusers.TorchAoConfig)
    assert isinstance(made["text_encoder"], transformers.TorchAoConfig)


def test_a_backend_without_components_takes_every_model(models: Path) -> None:
    backend = {"quant_backend": "torchao", "quant_kwargs": {"quant_type": "Int8WeightOnlyConfig"}}
    told = _load(models, "flux", backend).facts["quantization"]
    assert told.keys() >= {"transformer", "text_encoder", "text_encoder_2"}
    assert not told.keys() & {"scheduler", "tokenizer"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "torchao"}, ("quant_type", "quant_type_kwargs")),
        (TORCHAO | {"quant_type": "Int8WeightOnly"}, ("Did you mean 'Int8WeightOnlyConfig'?",)),
        (TORCHAO | {"quant_type_kwargs": {"granularty": 1}}, ("Did you mean 'granularity'?",)),
        (TORCHAO | {"quant_type_kwargs": {"group_size": 64}}, (PER_GROUP % 64,)),
        (TORCHAO | {"quant_type": {"Int8WeightOnlyConfig": {"group_size": 32}}}, (PER_GROUP % 32,)),
        (
            TORCHAO
            | {"quant_type": {"_type": "Int8WeightOnlyConfig", "_data": {"group_size": 32}}},
            (PER_GROUP % 32,),
        ),
        (
            TORCHAO | {"quant_type_kwargs": {"granularity": "PerGroup"}},
            ('"granularity": {"_type": "PerGroup"',),
        ),
        (TORCHAO | {"quant_type_kwargs": {"granularity": {"_type": "PerGruop"}}}, ("PerGruop",)),
        (TORCHAO | {"quant_type_kwargs": {"version": "two"}}, ("version 'two' is no int",)),
        (TORCHAO | {"quant_type_kwargs": {"set_inductor_config": 1}}, ("is no bool",)),
        (TORCHAO | {"modules_to_not_convert": 5}, ("modules_to_not_convert 5", '["proj_out"]')),
        (TORCHAO | {"modules_to_not_convert": [5]}, ('write one such as ["proj_out"]',)),
        (TORCHAO | {"modules_to_not_convert": {}}, ('write one such as ["proj_out"]',)),
        (
            TORCHAO | {"quant_type": "Int8StaticActivationInt8WeightConfig"},
            ("calibration", "use Int8DynamicActivationInt8WeightConfig"),
        ),
        (
            TORCHAO | {"quant_type": {"_type": "Float8StaticActivationFloat8WeightConfig"}},
            ("calibration", "use Float8DynamicActivationFloat8WeightConfig"),
        ),
        (
            TORCHAO | {"quant_type": "Float8DynamicActivationInt4WeightConfig"},
            ("pip install mslk", "use Int8WeightOnlyConfig"),
        ),
        (TORCHAO | {"quant_type": "intx_quantization_aware_training"}, ("Accepted: ",)),
        (
            {
                "quant_method": "torchao",
                "quant_type": "Float8WeightOnlyConfig",
                "quant_type_kwargs": {"weight_dtype": "int8"},
            },
            ("weight_dtype 'int8'", "float8_e4m3fn"),
        ),
        (TORCHAO | {"quant_type_kwargs": []}, ("quant_type_kwargs",)),
        (TORCHAO | {"modules_not_to_convert": []}, ("Did you mean 'modules_to_not_convert'?",)),
        (TORCHAO | {"quant_type": {"_type": "Nope", "_data": {}}}, ("Nope",)),
        (TORCHAO | {"quant_type": {"_type": "PerRow", "_data": {}}}, ("PerRow",)),
        (
            {
                "quant_method": "torchao",
                "quant_type": "Float8WeightOnlyConfig",
                "quant_type_kwargs": {"weight_dtype": "float8"},
            },
            ("dtype 'float8'", "float8_e4m3fn"),
        ),
        ({"quant_method": "torchao", "quant_type": "Int4WeightOnlyConfig"}, ("pip install mslk",)),
        (
            {"quant_method": "torchao", "quant_type": "Float8DynamicActivationFloat8WeightConfig"},
            ("compute capability 8.9", "fp8_weight_only"),
        ),
        ({"quant_method": "torchaoo"}, ("Did you mean 'torchao'?", "not known to diffusers")),
        ({"quant_method": "bitsandbytes"}, ("load_in_8bit or load_in_4bit",)),
        ({"quant_method": "gguf", "compute_dtype": "bfloat16"}, ("checkpoints of its own format",)),
    ],
    ids=str,
)
def test_wrong_configs_of_a_component_are_refused(
    models: Path, config: dict[str, Any], words: tuple[str, ...]
) -> None:
    text = _refusal(models, "flux", **_native({"quant_mapping": {"transformer": config}}))
    assert text.startswith("diffusers_load_kwargs.quantization_config: ")
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("config", "package"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes_8bit"}, "bitsandbytes"),
        ({"quant_method": "quanto", "weights_dtype": "int8"}, "optimum-quanto"),
        ({"quant_method": "auto-round"}, "auto-round"),
        ({"quant_method": "sdnq"}, "sdnq"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_package_is_named(models: Path, config: dict[str, Any], package: str) -> None:
    text = _refusal(models, "flux", **_native({"quant_mapping": {"transformer": config}}))
    assert f"pip install {package}" in text


@pytest.mark.parametrize("component", ["transformer", "text_encoder"])
def test_a_module_to_leave_out_that_is_not_there_is_refused(models: Path, component: str) -> None:
    given = TORCHAO | {"modules_to_not_convert": ["proj_uot", "final_layer_nrm"]}
    text = _refusal(models, "flux", {"quant_mapping": {component: given}})
    assert text.startswith(f"component '{component}': modules_to_not_convert 'proj_uot' names no ")
    assert "Remove it, or name one such as '" in text
    if component == "transformer":
        assert "Did you mean 'proj_out'?" in text


def test_components_that_share_a_config_need_a_module_only_in_one(models: Path) -> None:
    given = {
        "quant_backend": "torchao",
        "quant_kwargs": {"quant_type": TORCHAO["quant_type"], "modules_to_not_convert": "proj_out"},
        "components_to_quantize": ["transformer", "text_encoder"],
    }
    pipeline = _load(models, "flux", given).pipeline
    assert not is_quantized("weight", pipeline.transformer.proj_out.weight)


def test_what_is_no_model_is_refused(models: Path) -> None:
    text = _refusal(models, "flux", **_native({"quant_mapping": {"scheduler": TORCHAO}}))
    assert "component 'scheduler' (FlowMatchEulerDiscreteScheduler) is no model" in text


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fp8", ("compute capability 8.9", "runs on cpu", "use fp8_weight_only")),
        ("int4_weight_only", ("NVIDIA GPU", "runs on cpu", "use int8_weight_only")),
    ],
)
def test_what_the_cpu_cannot_do_is_said_at_load(
    models: Path, method: str, words: tuple[str, ...]
) -> None:
    text = _refusal(models, "flux", method)
    assert text.startswith(f"parameter 'quantization_config': '{method}' cannot work here: ")
    for word in words:
        assert word in text


def test_a_pipeline_without_linear_layers_is_refused(models: Path) -> None:
    """torchao passes over what it cannot quantize without a word."""
    everything = ["time_embedding", "down_blocks", "mid_block", "up_blocks"]
    given = TORCHAO | {"modules_to_not_convert": everything}
    text = _refusal(models, "ddpm", **_native({"quant_mapping": {"unet": given}}))
    assert "component 'unet' holds no quantized weights" in text
    assert "use another method" in text


def test_a_checkpoint_that_is_quantized_already_is_refused(models: Path, tmp_path: Path) -> None:
    expected = _load(models, "flux", "int8_weight_only")
    expected.pipeline.save_pretrained(tmp_path / "quantized")
    text = _refusal(tmp_path, "quantized", "fp8_weight_only")
    assert "component 'transformer': its checkpoint is quantized already" in text
    assert "remove quantization_config" in text
    again = _load(tmp_path, "quantized")
    assert count_bytes(again.pipeline.transformer).quantized
    assert np.array_equal(_draw(again), _draw(expected))


def test_an_optional_denoiser_that_a_model_lacks_is_passed_over(models: Path) -> None:
    """The constructor of a hub model's class names transformer_2, which Wan 2.1 leaves out."""
    from diffusers import WanPipeline

    components = dict.fromkeys(("transformer", "transformer_2"), "WanTransformer3DModel")
    config = ServeConfig(model="hub/id", quantization_config="int8")
    plan = plan_quantization(config, components, "WanPipeline", "cpu")
    assert plan is not None
    pipeline = WanPipeline.from_pretrained(models / "wan-t2v", quantization_config=plan.config)
    assert pipeline.transformer_2 is None
    assert set(verify_quantization(pipeline, plan)) == {"transformer"}
    named = Quantization(plan.config, plan.components, "int8", must_hold="named")
    with pytest.raises(ConfigError, match="component 'transformer_2' holds no quantized"):
        verify_quantization(pipeline, named)


@pytest.mark.parametrize("method", ON_THE_CPU)
def test_settings_of_the_compiler_are_left_alone_without_compilation(method: str) -> None:
    def plan(**options: Any) -> Any:
        config = ServeConfig(model="m", quantization_config=method, **options)
        made = plan_quantization(config, {"unet": "UNet2DModel"}, "DDPMPipeline", "cpu")
        assert made is not None
        return made.config.quant_mapping["unet"].quant_type.set_inductor_config

    assert plan() is False
    assert plan(torch_compile="regional") is True


def test_int4_asks_for_the_gpu_and_bfloat16() -> None:
    import torch

    from triton_diffusers.quantization.torchao import build_torchao

    config = build_torchao("Int4WeightOnlyConfig", {"int4_packing_format": "tile_packed_to_4d"})
    assert config.int4_packing_format.name == "TILE_PACKED_TO_4D"
    if torch.cuda.is_available():
        options = {"quantization_config": "int4_weight_only", "dtype": "float16"}
        with pytest.raises(ConfigError, match="needs dtype bfloat16"):
            plan_quantization(
                ServeConfig(model="m", **options), {"unet": "UNet2DModel"}, "DDPMPipeline", "cuda"
            )


@pytest.mark.parametrize("method", ON_THE_CPU)
def test_torchaos_tensors_go_with_model_and_group_offload(models: Path, method: str) -> None:
    """What placement.py allows and refuses; the hooks run here with the CPU as the device."""
    import torch

    expected = _draw(_load(models, "flux", method))

    def after(change: Any) -> np.ndarray:
        loaded = _load(models, "flux", method)
        change(loaded.pipeline)
        return _draw(loaded)

    cpu = torch.device("cpu")
    assert np.array_equal(after(lambda p: p.enable_model_cpu_offload(device="cpu")), expected)
    for kind in ("leaf_level", "block_level"):
        options = {"onload_device": cpu, "offload_type": kind, "num_blocks_per_group": 1}
        assert np.array_equal(after(lambda p, o=options: p.enable_group_offload(**o)), expected)
    with pytest.raises(TypeError):
        after(lambda p: p.enable_sequential_cpu_offload(device="cpu"))


def test_a_lora_goes_over_quantized_weights(models: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model_state_dict

    loaded = _load(models, "flux")
    transformer = loaded.pipeline.transformer
    targets = ["to_q", "to_k", "to_v"]
    transformer.add_adapter(
        LoraConfig(r=4, lora_alpha=64, target_modules=targets, init_lora_weights=False)
    )
    expected = _draw(loaded)
    loaded.pipeline.save_lora_weights(
        tmp_path, transformer_lora_layers=get_peft_model_state_dict(transformer)
    )
    lora = {"path": str(tmp_path), "scale": 1.0}
    for method in ON_THE_CPU:
        without = _draw(_load(models, "flux", method))
        drawn = _draw(_load(models, "flux", method, lora=[lora]))
        assert _distance(drawn, expected) < _distance(without, expected)


def test_compiled_blocks_draw_the_same(models: Path) -> None:
    expected = _draw(_load(models, "flux", "int8_weight_only"))
    compiled = _load(models, "flux", "int8_weight_only", torch_compile="regional")
    assert _distance(_draw(compiled), expected) < 1


def test_torchao_missing_is_told_with_what_to_install(models: Path, tmp_path: Path) -> None:
    """In a Python that has all that this one has, but no torchao."""
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    for found in site.iterdir():
        if not found.name.startswith("torchao"):
            (tmp_path / found.name).symlink_to(found)
    code = (
        "import pathlib\n"
        "from triton_diffusers.config.options import ServeConfig\n"
        "from triton_diffusers.errors import ConfigError\n"
        "from triton_diffusers.loading.load import load_pipeline\n"
        "from triton_diffusers.quantization.plan import check_quantization\n"
        "config = ServeConfig(model='flux', quantization_config='fp8_weight_only')\n"
        "print(check_quantization(config, {'transformer': 'T'}, 'FluxPipeline'))\n"
        "try:\n"
        f"    load_pipeline(config, pathlib.Path({str(models)!r}), 'cpu')\n"
        "except ConfigError as error:\n"
        "    print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    warning, refusal = done.stdout.strip().splitlines()
    assert "pip install torchao" in warning
    assert refusal.startswith("refused: parameter 'quantization_config': ")
    assert "needs the package torchao; install it in the Python that tritonserver uses" in refusal
    assert "pip install torchao" in refusal
