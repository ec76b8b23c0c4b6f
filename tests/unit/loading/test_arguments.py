# SPDX-License-Identifier: Apache-2.0
"""Load-time options whose form is checked without torch: placement, adapters, warm-up, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from builder import main as builder
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.config.unsupported import UNSUPPORTED
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.modules import check_memory_options
from triton_diffusers.loading.warmup import read_warmup
from triton_diffusers.lora.adapters import Adapter, read_adapters
from triton_diffusers.placement.placement import PLACEMENTS, check_placement, choose_placement

ON: dict[str, Any] = {
    "enable_cpu_offload": True,
    "enable_layerwise_offload": True,
    "enable_group_offload": "leaf_level",
    "device_map": "balanced",
    "quantization_config": "int8",
    "torch_compile": "full",
    "layerwise_casting": "float8_e4m3fn",
    "device": "cuda:1",
    "channels_last": True,
    "step_batching": True,
}


def _config(**options: Any) -> ServeConfig:
    return ServeConfig(model="m", **options)


@pytest.mark.parametrize("row", PLACEMENTS, ids=lambda row: row.option)
def test_each_placement_is_chosen_by_its_option(row: Any) -> None:
    assert choose_placement(_config(**{row.option: ON[row.option]})) is row


@pytest.mark.parametrize("row", PLACEMENTS, ids=lambda row: row.option)
def test_each_placement_needs_a_gpu(row: Any) -> None:
    config = _config(**{row.option: ON[row.option]})
    assert check_placement(config, "cuda:0") is row
    with pytest.raises(ConfigError, match=f"'{row.option}' needs a GPU"):
        check_placement(config, "cpu")


def test_no_option_means_no_placement() -> None:
    assert check_placement(_config(), "cpu") is None


@pytest.mark.parametrize(
    ("first", "second"),
    [(a.option, b.option) for i, a in enumerate(PLACEMENTS) for b in PLACEMENTS[i + 1 :]],
)
def test_two_placements_are_refused(first: str, second: str) -> None:
    config = _config(**{first: ON[first], second: ON[second]})
    with pytest.raises(ConfigError, match=f"'{first}' and '{second}' both place"):
        choose_placement(config)


@pytest.mark.parametrize(
    ("option", "other"), [(row.option, other) for row in PLACEMENTS for other, _ in row.not_with]
)
def test_what_cannot_be_combined_is_refused(option: str, other: str) -> None:
    config = _config(**{option: ON[option], other: ON[other]})
    with pytest.raises(ConfigError, match=f"'{option}' cannot be combined with '{other}'"):
        choose_placement(config)


def test_native_quantization_counts_too() -> None:
    native = {"quantization_config": {"quant_backend": "torchao"}}
    with pytest.raises(ConfigError, match="cannot be combined with 'quantization_config'"):
        choose_placement(_config(enable_layerwise_offload=True, diffusers_load_kwargs=native))
    with pytest.raises(ConfigError, match="cannot be combined with 'quantization_config'"):
        check_memory_options(_config(layerwise_casting="float8_e5m2", diffusers_load_kwargs=native))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ()),
        ("style", (Adapter("style", "lora_0"),)),
        ({"path": "a", "scale": 2}, (Adapter("a", "lora_0", None, 2.0),)),
        (
            ["a", {"path": "b", "weight_name": "w", "adapter_name": "x", "scale": 0.5}],
            (Adapter("a", "lora_0"), Adapter("b", "x", "w", 0.5)),
        ),
    ],
)
def test_adapters_are_read(given: Any, expected: tuple[Adapter, ...]) -> None:
    assert read_adapters(_config(lora=given)) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty list"),
        ([3], "each adapter is a path"),
        ({"scale": 1}, "each adapter is a path"),
        ({"path": "a", "weigth_name": "w"}, "Did you mean 'weight_name'"),
        ({"path": "a", "scale": "much"}, "'much' is not a number"),
        ({"path": "a", "scale": True}, "is not a number"),
        ({"path": "a", "adapter_name": 3}, "are texts"),
        (["a", {"path": "b", "adapter_name": "lora_0"}], "called the same"),
    ],
)
def test_wrong_adapters_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_adapters(_config(lora=given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("none", []),
        ("default", [{}]),
        ("512x256", [{"width": 512, "height": 256}]),
        ("832x480x81, default", [{"width": 832, "height": 480, "num_frames": 81}, {}]),
        ([{"height": 64}, {}], [{"height": 64}, {}]),
    ],
)
def test_warm_up_is_read(given: Any, expected: Any) -> None:
    assert read_warmup(_config(warmup=given)) == expected


@pytest.mark.parametrize("given", ["512", "512x", "0x512", "512x512x", "big", "512x512,", [], [3]])
def test_wrong_warm_up_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"parameter 'warmup': .*(default|none)"):
        read_warmup(_config(warmup=given))


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_what_is_not_supported_is_refused_by_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"parameter '{name}' is not supported: ") as refused:
        ServeConfig.from_parameters({"model": "m", name: "2"})
    assert UNSUPPORTED[name] in str(refused.value)
    for flag in (f"--{name}", f"--{name.replace('_', '-')}=2"):
        with pytest.raises(SystemExit) as exited:
            builder.main(["add-model", "m", flag, "2"])
        assert exited.value.code == 2
        said = capsys.readouterr().err
        assert "is not supported: " in said
        assert said.count("\n") == 1


def test_load_kwargs_that_are_options_count_as_options() -> None:
    given = {"device_map": "balanced", "variant": "fp16", "trust_remote_code": True, "other": 1}
    lifted = _config(diffusers_load_kwargs=given, variant="bf16").lifted()
    assert (lifted.device_map, lifted.variant, lifted.trust_remote_code) == (
        "balanced",
        "fp16",
        True,
    )
    assert lifted.diffusers_load_kwargs == {"other": 1}
    assert _config(diffusers_load_kwargs={"variant": None}, variant="fp16").lifted() == _config()
    with pytest.raises(ConfigError, match="'enable_cpu_offload' and 'device_map' both place"):
        choose_placement(_config(diffusers_load_kwargs=given, enable_cpu_offload=True).lifted())
    with pytest.raises(
        ConfigError, match="diffusers_load_kwargs: parameter 'device_map': 3 is not"
    ):
        _config(diffusers_load_kwargs={"device_map": 3}).lifted()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"variant": ""}, "'variant' is empty"),
        ({"device_map": ""}, "'device_map' is empty"),
        ({"boundary_ratio": "abc"}, "'abc' is not a number"),
        ({"boundary_ratio": 5}, "5 is above 1"),
        ({"trust_remote_code": "yes"}, "'yes' is not true or false"),
        ({"dtype": "float12"}, "'float12' is not one of"),
        ({"dtype": "float16", "torch_dtype": "float16"}, "mean the same: give one"),
    ],
)
def test_lifted_values_are_checked_as_options(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"diffusers_load_kwargs: .*{words}"):
        _config(diffusers_load_kwargs=given).lifted()


def test_a_dtype_of_load_kwargs_is_the_option() -> None:
    for name in ("dtype", "torch_dtype"):
        assert _config(diffusers_load_kwargs={name: "torch.float16"}).lifted().dtype == "float16"
    each = {"unet": "bfloat16"}
    assert _config(diffusers_load_kwargs={"torch_dtype": each}).lifted().dtype == each


def test_what_is_given_twice_is_told() -> None:
    config = _config(diffusers_load_kwargs={"variant": "fp16", "dtype": "float16"}, variant="ema")
    (told,) = config.given_twice()
    assert told == "'variant' is given twice: 'fp16' of diffusers_load_kwargs wins"
