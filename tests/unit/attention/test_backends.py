# SPDX-License-Identifier: Apache-2.0
"""The table of attention backends and the names that an entry may give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from triton_diffusers.attention.backends import (
    AUTO,
    BACKENDS,
    CHAINS,
    ELSEWHERE,
    NATIVE,
    REFUSED,
    Backend,
    Tolerance,
    chain,
)
from triton_diffusers.attention.choice import (
    ENVIRONMENT,
    check_attention,
    check_environment,
    choose_attention,
    platform_of,
)
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.signature import Signature

PLATFORMS = ("cuda", "rocm", "xpu", "npu", "xla", "cpu", "mps")
NAMES = (*CHAINS, *BACKENDS)


def _config(name: str) -> ServeConfig:
    return ServeConfig(model="m", attention_backend=name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_stands_for_backends_of_the_table_on_every_platform(name: str) -> None:
    for spelling in (name, name.lower(), name.upper(), f" {name} "):
        check_attention(_config(spelling))
        for platform in PLATFORMS:
            found = chain(spelling, platform)
            assert found
            assert set(found) <= set(BACKENDS)


@pytest.mark.parametrize("row", BACKENDS.values(), ids=str)
def test_every_row_says_what_it_is(row: Backend) -> None:
    assert row.about
    assert row.about[-1] != "."
    assert set(row.platforms) <= set(PLATFORMS)
    assert 0 < row.tolerance.float32 <= row.tolerance.half < 1
    if row.from_hub:
        assert row.package == "kernels"


@pytest.mark.parametrize("name", REFUSED)
def test_names_of_no_use_are_refused_with_what_to_choose(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*choose (FLASH_ATTN|_native_cudnn)"):
        check_attention(_config(f"auto,{name}"))


def test_an_unknown_name_gets_its_near_miss() -> None:
    for given, meant in (("FLASH_ATN", "FLASH_ATTN"), ("xformer", "xformers"), ("SDPA", "native")):
        with pytest.raises(ConfigError) as refused:
            check_attention(_config(given))
        assert str(refused.value) == (
            f"attention_backend '{given}' is not an attention backend. Did you mean '{meant}'?"
        )


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_that_others_use_lead_to_ours(name: str) -> None:
    assert chain(ELSEWHERE[name], "cuda")
    with pytest.raises(ConfigError, match=f"Did you mean '{ELSEWHERE[name]}'"):
        check_attention(_config(name))


@pytest.mark.parametrize("given", ["flash,,sage", "qqq"])
def test_a_name_like_none_gets_all_of_them(given: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_attention(_config(given))
    text = str(refused.value)
    assert "is not an attention backend; names of diffusers: native, " in text
    assert "; or auto, FLASH_ATTN, " in text


@pytest.mark.parametrize("name", [NATIVE, " Native "])
def test_a_fallback_without_effect_is_refused(name: str) -> None:
    config = ServeConfig(model="m", attention_backend=name, attention_fallback="error")
    with pytest.raises(ConfigError, match="'attention_fallback' error has no effect"):
        check_attention(config)
    check_attention(replace(config, attention_backend="TORCH_SDPA"))
    check_attention(replace(config, attention_fallback="native"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("banana", "Accepted: native, "),
        ("", "Accepted: native, "),
        ("FLASH", r"Did you mean 'flash'\?"),
        ("flahs", r"Did you mean 'flash'\?"),
    ],
)
def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch, given: str, says: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, given)
    with pytest.raises(ConfigError, match=f"DIFFUSERS_ATTN_BACKEND '{given}' is no .*{says}"):
        check_environment()
    for fine in BACKENDS:
        monkeypatch.setenv(ENVIRONMENT, fine)
        check_environment()
    monkeypatch.delenv(ENVIRONMENT)
    check_environment()


def test_flash_on_nvidia_is_three_then_two_each_from_the_hub_first() -> None:
    found = [n for n in chain("FLASH_ATTN", "cuda") if "varlen" not in n]
    assert found == ["_flash_3_hub", "_flash_3", "flash_hub", "flash", "_native_flash"]
    assert chain(AUTO, "cuda") == (*chain("FLASH_ATTN", "cuda"), NATIVE)


def test_platforms_have_their_own() -> None:
    assert chain(AUTO, "cpu") == chain(AUTO, "mps") == (NATIVE,)
    assert chain(AUTO, "rocm")[0] == "aiter_fa2_hub"
    assert chain(AUTO, "npu") == ("_native_npu", NATIVE)
    assert chain("SAGE_ATTN", "cuda")[:2] == ("sage_hub", "sage")


def test_a_list_is_tried_in_its_order_each_backend_once() -> None:
    assert chain("sage, FLASH_ATTN ,_native_flash,native", "cpu") == (
        *("sage", "_native_flash", "native"),
    )


@pytest.mark.parametrize("row", BACKENDS.values(), ids=str)
def test_a_backend_for_other_hardware_says_so(row: Backend) -> None:
    reason = row.unavailable("cpu")
    if row.platforms:
        assert reason is not None
        assert reason.endswith("not on cpu")
    else:
        assert reason is None


def test_a_missing_package_is_named() -> None:
    row = Backend("x", "x", ("cuda",), "no_such_package_here")
    assert row.unavailable("cuda") == "package no_such_package_here is not installed"


def test_kernels_of_the_hub_are_left_out_offline() -> None:
    row = Backend("x", "x", ("cuda",), "json", from_hub=True, tolerance=Tolerance(1, 1))
    reason = row.unavailable("cuda")
    assert reason is not None
    assert "HF_HUB_OFFLINE is set" in reason


def test_native_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = Signature("P", {}, frozenset(), {})
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    choice = choose_attention(object(), _config("native"), signature, {}, "cpu")
    assert (choice.active, choice.attempts, choice.warnings) == (NATIVE, (), ())


def test_a_cpu_is_its_own_platform() -> None:
    assert platform_of("cpu") == "cpu"
    assert platform_of("xpu:1") == "xpu"
