# SPDX-License-Identifier: Apache-2.0
"""Every family of the folder keeps the rules of families."""

from __future__ import annotations

import dataclasses

import pytest

from triton_diffusers import families
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.families import Family

OPTIONS = {option.name for option in options()}


@pytest.fixture(params=families.all_families(), ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    found = request.param
    assert isinstance(found, Family)
    return found


def test_family_is_found_by_its_pipelines(family: Family) -> None:
    assert family.pipelines
    for name in family.pipelines:
        assert families.find(name.replace("*", "Pipeline")) is family


def test_family_changes_something(family: Family) -> None:
    plain = Family(family.name, family.pipelines)
    assert family != plain


def test_family_options_exist(family: Family) -> None:
    assert set(family.options) <= OPTIONS
    for option in family.options:
        assert family.name in families.family_options()[option]


def test_family_without_options_set_adds_no_load_kwargs(family: Family) -> None:
    if family.load_kwargs is not None:
        assert family.load_kwargs(ServeConfig(model="m")) == {}


def test_family_is_a_value(family: Family) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        family.name = "another"
    assert all(a != b for a, b in family.aliases.items())
    assert family.fps is None or family.fps > 0


def test_others_have_no_family() -> None:
    assert families.find("StableDiffusionPipeline") is None


def test_boundary_ratio_reaches_the_load_kwargs() -> None:
    wan = families.find("WanImageToVideoPipeline")
    assert wan is not None
    assert wan.load_kwargs is not None
    assert wan.load_kwargs(ServeConfig(model="m", boundary_ratio=0.9)) == {"boundary_ratio": 0.9}
