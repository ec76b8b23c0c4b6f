# SPDX-License-Identifier: Apache-2.0
"""Every entry that must not load is refused with one line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.config_cases import CASES, ConfigCase
from tests.server.spoiled import load_arguments, write_spoiled
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.entry import load_entry


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad-config")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_entry_does_not_load(folder: Path, case: ConfigCase) -> None:
    entry = write_spoiled(folder, folder / "repository", case)
    with pytest.raises(ConfigError) as refused:
        load_entry(load_arguments(entry))
    text = str(refused.value)
    assert "\n" not in text
    for word in case.words:
        assert word in text


def test_unspoiled_entry_loads(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = ConfigCase("unspoiled", lambda entry, model: None, ())
    entry = write_spoiled(folder, folder / "repository", case)
    capfd.readouterr()
    loaded = load_entry(load_arguments(entry))
    assert loaded.signature.pipeline_class == "StableDiffusionPipeline"
    said = capfd.readouterr()
    assert "Loading" not in said.out + said.err
    assert "safety checker" not in said.out + said.err


@pytest.mark.parametrize("number", ["0", "3"])
def test_the_device_of_the_instance_is_the_one_used(folder: Path, number: str) -> None:
    """Two instances on two GPUs ask for two GPUs; here there is none, and the error names it."""
    case = ConfigCase(f"gpu-{number}", lambda entry, model: None, ())
    entry = write_spoiled(folder, folder / "repository", case)
    instance = {"model_instance_kind": "GPU", "model_instance_device_id": number}
    with pytest.raises(ConfigError, match=f"'cuda:{number}' is not there"):
        load_entry(load_arguments(entry) | instance)


@pytest.mark.parametrize(
    ("count", "given", "threads"), [(1, "", 4), (2, "", 2), (9, "", 1), (2, "3", 4)]
)
def test_instances_share_the_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, given: str, threads: int
) -> None:
    """Several processes that each start one thread per core would be slower than one."""
    import torch

    case = ConfigCase(f"shared-{count}{given}", lambda entry, model: None, ())
    arguments = load_arguments(write_spoiled(folder, folder / "repository", case))
    config = json.loads(arguments["model_config"])
    config["instance_group"] = [{"kind": "KIND_CPU", "count": count}]
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        load_entry(arguments | {"model_config": json.dumps(config)})
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
