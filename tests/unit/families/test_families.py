# SPDX-License-Identifier: Apache-2.0
"""Every family of the folder keeps the rules of families."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from triton_diffusers import families
from triton_diffusers.config.declared import ModelOptions, ServingOptions
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.families import Family

OPTIONS = {option.name for option in options()}
ROOT = Path(__file__).parent.parent.parent.parent
SOURCES = [
    file
    for folder in ("triton_diffusers", "builder", "benchmarks", "scripts", "model_repository")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".pbtxt") and file.parent.name != "families"
]
MADE_UP = """
from dataclasses import dataclass
from triton_diffusers.families import Family
from triton_diffusers.families.option import option

@dataclass(frozen=True, kw_only=True)
class Options:
    made_up_rate: float | None = option(
        "Made up.", minimum=0, group="speed", in_requests=True, tried=True
    )

FAMILY = Family(name="made_up", pipelines=("StableDiffusionPipeline",), declares=Options)
"""
USED = """
import sys
from dataclasses import replace
from pathlib import Path
from triton_diffusers import families
families.__path__.append(sys.argv[1])
from builder import main
from scripts import make_docs
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway.schemas import VideoFields
from triton_diffusers.loading import features
from triton_diffusers.loading.plan import plan_load
from triton_diffusers.loading.warmup import tried_options

names = [option.name for option in options()]
assert names.index("made_up_rate") < names.index("scheduler")
config = ServeConfig.from_parameters({"model": "a/b", "made_up_rate": "0.5"})
assert config.to_parameters() == {"model": "a/b", "made_up_rate": "0.5"}
assert tried_options(config) == ["made_up_rate"]
assert "made_up_rate" in VideoFields.model_fields
assert "| `made_up_rate` | number |" in make_docs.parameters()
for cls in ("StableDiffusionPipeline", "FluxPipeline"):
    try:
        print(features.check(plan_load(replace(config, pipeline_class=cls), Path())))
    except ConfigError as error:
        print(error)
main.main(["add-model", "--help"])
"""


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


def test_family_options_are_named_in_its_file_alone(family: Family) -> None:
    assert len(SOURCES) > 200
    for option in family.options:
        name = re.compile(rf"\b{option}\b|--{option.replace('_', '-')}\b")
        assert not [file for file in SOURCES if name.search(file.read_text())]


def test_no_option_is_declared_twice() -> None:
    own = [f.name for cls in (ModelOptions, ServingOptions) for f in dataclasses.fields(cls)]
    declared = [f.name for cls in families.declared_options() for f in dataclasses.fields(cls)]
    assert sorted(own + declared) == sorted(OPTIONS)


def test_a_family_adds_an_option_by_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    command = [sys.executable, "-c", USED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "parameter 'made_up_rate' has no effect on FluxPipeline: only made_up" in done.stdout
    assert "--made-up-rate X" in done.stdout


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
