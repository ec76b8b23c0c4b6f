# SPDX-License-Identifier: Apache-2.0
"""ServeConfig as plain text, for every option there is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.config.text import option_type, read_option
from triton_diffusers.errors import ConfigError

VALUES: dict[type, Any] = {
    str: "a text",
    bool: True,
    int: 7,
    float: 0.1,
    dict: {"a": [1, None, "\u00e9\"'"], "b": {"c": 0.1}},
}
NONSENSE: dict[type, tuple[str, ...]] = {
    bool: ("", "1", "yes", "True.", "none"),
    int: ("", "1.5", "many", "0x10", "nan"),
    float: ("", "much", "nan", "inf", "-inf", "1e999"),
    dict: ("", "{", "[]", "1", "null", '"a"', '{"a": NaN}', '{"a": 1, "a": 2}', "{'a': 1}"),
}
OPTIONS = {option.name: option for option in options()}


def _value(name: str) -> Any:
    option = OPTIONS[name]
    if option.metadata["form"]:
        return "cuda"
    if option.metadata["choices"]:
        return option.metadata["choices"][-1]
    if option_type(option) is bool:
        return not option.default
    value, minimum = VALUES[option_type(option)], option.metadata["minimum"]
    return value if minimum is None else max(value, minimum)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_survives_the_text(name: str) -> None:
    config = dataclasses.replace(ServeConfig(model="m"), **{name: _value(name)})
    parameters = config.to_parameters()
    assert name in parameters
    assert ServeConfig.from_parameters(parameters) == config


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_is_described(name: str) -> None:
    about = OPTIONS[name].metadata["about"]
    assert about.endswith(".")
    assert len(about) <= 100


@pytest.mark.parametrize(
    ("name", "text"),
    [(n, text) for n, o in OPTIONS.items() for text in NONSENSE.get(option_type(o), ())],
)
def test_nonsense_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter '{name}'") as refused:
        read_option(OPTIONS[name], text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if o.metadata["choices"]])
def test_choices_are_listed(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_option(OPTIONS[name], "zzz")
    for choice in OPTIONS[name].metadata["choices"]:
        assert choice in str(refused.value)


@pytest.mark.parametrize(
    "name", [n for n, o in OPTIONS.items() if o.metadata["minimum"] is not None]
)
def test_minimum_holds(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*below"):
        read_option(OPTIONS[name], str(int(OPTIONS[name].metadata["minimum"]) - 1))


@pytest.mark.parametrize(
    "name", [n for n, o in OPTIONS.items() if o.metadata["maximum"] is not None]
)
def test_maximum_holds(name: str) -> None:
    maximum = OPTIONS[name].metadata["maximum"]
    assert read_option(OPTIONS[name], str(maximum)) == maximum
    with pytest.raises(ConfigError, match=f"'{name}'.*above"):
        read_option(OPTIONS[name], str(maximum + 1))


def test_boundary_ratio_is_a_share() -> None:
    assert OPTIONS["boundary_ratio"].metadata["maximum"] == 1


@pytest.mark.parametrize("name", ["device", "generator_device"])
def test_devices_have_a_form(name: str) -> None:
    for device in ("cpu", "cuda", "cuda:7", "xpu", "npu:0", "mps"):
        assert read_option(OPTIONS[name], device) == device
    for device in ("gpu", "cuda:", "cuda:x", "CUDA", "", "0", "cuda:1\n"):
        with pytest.raises(ConfigError, match=f"'{name}'.* is not cpu, cuda"):
            read_option(OPTIONS[name], device)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_typing_error_in_a_name_gets_the_near_miss(name: str) -> None:
    wrong = name[:-1] + "q" if name != "model" else "modle"
    with pytest.raises(ConfigError, match=f"parameter '{wrong}'.*Did you mean"):
        ServeConfig.from_parameters({"model": "m", wrong: "x"})


def test_defaults_are_left_out() -> None:
    assert ServeConfig(model="m").to_parameters() == {"model": "m"}


@pytest.mark.parametrize("parameters", [{}, {"model": ""}])
def test_model_is_required(parameters: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="'model' is missing"):
        ServeConfig.from_parameters(parameters)
