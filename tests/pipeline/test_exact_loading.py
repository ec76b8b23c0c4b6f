# SPDX-License-Identifier: Apache-2.0
"""Shards that load in parallel, watched and timed, give the very weights of plain diffusers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.pipeline.digest import DTYPES

NAMES = (
    "flux",
    "stable-diffusion",
    "wan-t2v",
    "qwen-image",
    "stable-diffusion-3",
    "ltx",
    "audioldm2",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = tmp_path_factory.mktemp("sharded")
    for name in NAMES:
        pipeline: Any = tiny.TINY[name].build()
        pipeline.save_pretrained(made / name, max_shard_size="10KB")
        if name == "flux":
            pipeline.save_pretrained(made / "unmapped", max_shard_size="10KB")
            pipeline.save_pretrained(made / "pickled", safe_serialization=False)
    assert len(list((made / "flux" / "transformer").glob("*-of-*.safetensors"))) > 3
    return [str(folder) for folder in sorted(made.iterdir())]


def load(how: str, folders: list[str]) -> Any:
    command = [sys.executable, "-m", "tests.pipeline.digest", how, *folders]
    told = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ)
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def both(folders: list[str]) -> tuple[Any, Any]:
    """Dtype -> pipeline -> its tensors, of plain diffusers and of ours."""
    return load("plain", folders), load("ours", folders)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_those_of_plain_diffusers(both: Any, folders: list[str], dtype: str) -> None:
    plain, ours = (told[dtype] for told in both)
    assert plain.keys() == ours.keys() == {Path(folder).name for folder in folders}
    for name in plain:
        assert len(plain[name]) > 20
        assert plain[name] == ours[name]
