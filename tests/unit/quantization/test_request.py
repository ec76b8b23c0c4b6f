# SPDX-License-Identifier: Apache-2.0
"""What an entry may ask for in quantization, and how it is refused: no torch needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.plan import present
from triton_diffusers.pipelines import denoisers
from triton_diffusers.quantization.methods import (
    DENOISERS,
    METHODS,
    REFUSED,
    Method,
    read_method,
)
from triton_diffusers.quantization.native import read_native
from triton_diffusers.quantization.plan import check_quantization

FLUX = {"transformer": "FluxTransformer2DModel", "vae": "AutoencoderKL", "scheduler": "Scheduler"}
TORCHAO = {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}
MAPPING = {"quant_mapping": {"transformer": TORCHAO}}
BACKEND = {
    "quant_backend": "torchao",
    "quant_kwargs": {"quant_type": "Int8WeightOnlyConfig"},
    "components_to_quantize": ["transformer"],
}


def _check(
    quantization: Any = None, components: dict[str, str] = FLUX, native: Any = None, **options: Any
) -> list[str]:
    if native is not None:
        options["diffusers_load_kwargs"] = {"quantization_config": native}
    config = ServeConfig(model="m", quantization_config=quantization, **options)
    return check_quantization(config, present(config, components), "FluxPipeline")


def _refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        _check(*args, **options)
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_rows_are_complete(method: Method) -> None:
    assert method.config_class.endswith("Config")
    assert method.about.endswith(".")
    assert len(method.about) <= 100
    assert method.name in method.describe()
    assert method.config_class in method.describe()
    assert method.instead.startswith("use ")
    assert any(name in method.instead for name in METHODS if name != method.name)
    assert bool(method.slow) == method.dynamic


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("as_object", [False, True])
def test_every_method_is_read(name: str, as_object: bool) -> None:
    given = {"method": name} if as_object else name
    warnings = _check(given)
    assert _check(given, torch_compile="regional") == []
    assert bool(warnings) == METHODS[name].dynamic
    for text in warnings:
        assert "torch_compile" in text
        assert f"{name}_weight_only" in text


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_slow_methods_warn_in_the_native_form_too(name: str) -> None:
    given = {
        "quant_mapping": {"transformer": {**TORCHAO, "quant_type": METHODS[name].config_class}}
    }
    (text,) = _check(native=given)
    assert "torch_compile" in text
    assert _check(native=given, torch_compile="full") == []


@pytest.mark.parametrize("name", REFUSED)
def test_methods_of_others_are_refused_with_the_way_out(name: str) -> None:
    for given in (name, name.upper(), {"method": name}):
        text = _refusal(given)
        assert "parameter 'quantization_config'" in text
        assert f"'{name}'" in text.lower()
        assert any(way in text for way in (*METHODS, "quant_mapping"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("int9", ("int9", "Did you mean 'int8'?", "Accepted: fp8,")),
        ("fp8_weightonly", ("Did you mean 'fp8_weight_only'?",)),
        ("", ("Accepted: fp8,",)),
        ({}, ("method is missing", "int8")),
        ({"metod": "int8"}, ("key 'metod'", "Did you mean 'method'?")),
        ({"method": 8}, ("8", "int8")),
        ({"method": None}, ("None", "int8")),
        ({"method": "int8", "is_checkpoint_int8_serialized": True}, ("serialized", "leave")),
        ({"method": "fp8", "is_checkpoint_fp8_serialized": True}, ("serialized", "leave")),
        ({"method": "fp8", "activation_scheme": "static"}, ("'static'", "dynamic")),
        ({"method": "int8_weight_only", "activation_scheme": "dynamic"}, ("no effect", "int8")),
        ({"method": "fp8", "weight_block_size": [128, 128]}, ("weight_block_size", "granularity")),
        ({"method": "fp8", "ignored_layers": ["a"]}, ("ignored_layers", "modules_to_not_convert")),
        ({"method": "int8", "modules_to_not_convert": ["a"]}, ("quant_mapping", "torchao")),
        ({"quant_method": "fp8"}, ('{"method": NAME}', "quant_mapping")),
    ],
)
def test_wrong_short_forms_are_refused(given: Any, words: tuple[str, ...]) -> None:
    text = _refusal(given)
    assert text.startswith("parameter 'quantization_config': ")
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", METHODS)
def test_names_ignore_case(name: str) -> None:
    for given in (name, name.upper(), name.title(), name.replace("_", "-")):
        assert read_method(given) is read_method({"method": given}) is METHODS[name]
    mapping = {"transformer": {"quant_method": "TorchAO", "quant_type": "Int8WeightOnlyConfig"}}
    form = read_native({"quant_mapping": mapping}, {"transformer": "T"}, "FluxPipeline")
    assert form.configs["transformer"]["quant_method"] == "torchao"


def test_keys_that_ask_for_nothing_are_accepted() -> None:
    """As others write them: the values that say what happens here anyway."""
    given = {
        "method": "fp8",
        "activation_scheme": "dynamic",
        "is_checkpoint_fp8_serialized": False,
        "ignored_layers": [],
        "weight_block_size": None,
    }
    assert len(_check(given)) == 1


def test_a_dduf_file_is_refused() -> None:
    config = ServeConfig(model="folder/model.dduf", quantization_config="int8")
    with pytest.raises(ConfigError, match=r"DDUF.*save_pretrained"):
        check_quantization(config, FLUX, "FluxPipeline")
    assert "DDUF" in _refusal("int8", diffusers_load_kwargs={"dduf_file": "model.dduf"})


def test_a_pipeline_without_denoiser_is_refused() -> None:
    text = _refusal("int8_weight_only", {"prior": "PriorTransformer", "scheduler": "S"})
    assert "none of transformer, transformer_2" in text
    assert "quant_mapping" in text
    assert "It has: prior, scheduler" in text


def test_a_component_that_is_left_out_does_not_count() -> None:
    left_out = {"diffusers_load_kwargs": {"unet": None}}
    assert "none of transformer" in _refusal("int8", {"unet": "UNet2DModel"}, **left_out)
    assert "none of transformer" in _refusal("int8", {"unet": None})


@pytest.mark.parametrize("option", ["enable_cpu_offload", "enable_group_offload"])
def test_what_is_packed_on_the_gpu_does_not_go_with_offload(option: str) -> None:
    value: Any = "leaf_level" if option == "enable_group_offload" else True
    text = _refusal("int4_weight_only", **{option: value})
    assert option in text
    assert "int8_weight_only" in text
    assert _check("int8_weight_only", **{option: value}) == []


@pytest.mark.parametrize("native", [MAPPING, BACKEND], ids=["mapping", "backend"])
def test_native_forms_are_read_in_either_place(native: dict[str, Any]) -> None:
    assert _check(native=native) == []
    assert _check(native) == []


def test_the_native_form_wins_with_a_warning() -> None:
    (text,) = _check("fp8", native=MAPPING)
    assert "parameter 'quantization_config' is not used" in text
    assert "diffusers_load_kwargs.quantization_config wins" in text


@pytest.mark.parametrize(
    ("native", "words"),
    [
        ("int8", ("short form", "parameter 'quantization_config'")),
        ({"method": "int8"}, ("short form", "parameter 'quantization_config'")),
        ([1], ("[1]", "quant_mapping")),
        ({**MAPPING, "quant_backend": "torchao"}, ("either quant_backend or quant_mapping",)),
        ({"quant_kwargs": {"a": 1}}, ("either quant_backend or quant_mapping",)),
        ({"quant_maping": {}}, ("quant_maping",)),
        ({**MAPPING, "quant_kwarg": {}}, ("Did you mean 'quant_kwargs'?",)),
        ({**MAPPING, "quant_kwargs": {"a": 1}}, ("quant_kwargs goes with quant_backend",)),
        ({"quant_mapping": {}}, ("quant_mapping must name components",)),
        ({"quant_mapping": {"transformer": "int8"}}, ("'transformer'", "quant_method")),
        ({"quant_mapping": {"transformer": {}}}, ("'transformer'", "quant_method")),
        ({"quant_mapping": {"transfomer": TORCHAO}}, ("Did you mean 'transformer'?",)),
        ({"quant_backend": 1, "quant_kwargs": {"a": 1}}, ("quant_backend 1",)),
        ({"quant_backend": "torchao"}, ("needs quant_kwargs",)),
        ({"quant_backend": "torchao", "quant_kwargs": {}}, ("needs quant_kwargs",)),
        ({**BACKEND, "components_to_quantize": ["trnsformer"]}, ("Did you mean 'transformer'?",)),
        ({**BACKEND, "components_to_quantize": "unet"}, ("'unet'", "Accepted: scheduler,")),
        ({**BACKEND, "components_to_quantize": []}, ("list of component names",)),
        (TORCHAO, ("under its name in quant_mapping",)),
    ],
)
def test_wrong_native_forms_are_refused(native: Any, words: tuple[str, ...]) -> None:
    text = _refusal(native=native)
    assert text.startswith("diffusers_load_kwargs.quantization_config: ")
    for word in words:
        assert word in text


def test_nothing_asked_is_nothing_checked() -> None:
    assert _check(components={}) == []


def test_checking_imports_neither_torch_nor_torchao() -> None:
    code = (
        "import sys\n"
        "from triton_diffusers.config.options import ServeConfig\n"
        "from triton_diffusers.quantization.plan import check_quantization\n"
        "config = ServeConfig(model='m', quantization_config='int8')\n"
        "check_quantization(config, {'unet': 'UNet2DModel'}, 'DDPMPipeline')\n"
        "print(sorted({'torch', 'torchao', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_what_the_short_form_quantizes_denoises() -> None:
    assert set(DENOISERS) <= set(denoisers.NAMES)
