# SPDX-License-Identifier: Apache-2.0
"""One real tritonserver with six small entries, shared by the test modules that name this plugin.

A module asks for it with `pytest_plugins = ("tests.server.entries",)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from builder import main as builder
from builder.tritonserver import Server, start_server
from tests import tiny

SMALL = {"height": 16, "width": 16, "num_inference_steps": 1}
LOADS_AT_ONCE = 2


@dataclass(frozen=True)
class Entry:
    """An entry of the shared server: a tiny pipeline and its load-time options."""

    tiny: str
    call: dict[str, Any] = field(default_factory=dict)
    """diffusers_call_kwargs."""
    options: tuple[str, ...] = ()


ENTRIES = {
    "pictures": Entry("stable-diffusion", SMALL, ("--max-prompt-chars", "2000")),
    "edits": Entry(
        "stable-diffusion-img2img",
        {"num_inference_steps": 2, "strength": 0.5},
        ("--max-input-bytes", "65536", "--max-input-pixels", "1048576"),
    ),
    "clips": Entry(
        "wan-v2v",
        SMALL | {"num_inference_steps": 2, "strength": 0.5, "max_sequence_length": 16},
        ("--max-frames", "8"),
    ),
    "sounds": Entry("stable-audio-variation", {"num_inference_steps": 1}),
    "shapes": Entry("ddpm", {"num_inference_steps": 2}, ("--max-queue", "3")),
    "streams": Entry("stable-diffusion", SMALL, ("--decoupled",)),
}
"""`shapes` has no prompt and no callback_on_step_end; `streams` is decoupled."""


def add_entry(repository: Path, name: str, model: Path, *options: str) -> Path:
    """Write an entry as an operator would; return its folder."""
    words = ["add-model", str(model), "--name", name, "--repository", str(repository), *options]
    assert builder.main(words) == 0
    return repository / name


def load_all(server: Server, names: list[str]) -> None:
    """Load entries, two at a time."""
    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        list(pool.map(lambda name: server.load(name, timeout_s=120), names))


def write_entries(folder: Path, entries: dict[str, Entry]) -> Path:
    """Write tiny pipelines and their entries below `folder`; return the model repository."""
    repository = folder / "repository"
    for name, entry in entries.items():
        model = folder / "models" / entry.tiny
        if not model.exists():
            tiny.save(entry.tiny, model.parent)
        call = ("--diffusers-call-kwargs", json.dumps(entry.call)) if entry.call else ()
        add_entry(repository, name, model, *call, *entry.options)
    return repository


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `models` and `repository` of the shared server."""
    return tmp_path_factory.mktemp("shared-server")


@pytest.fixture(scope="session")
def small_server(shared_folder: Path) -> Iterator[Server]:
    """The shared server with every entry loaded."""
    repository = write_entries(shared_folder, ENTRIES)
    with start_server(repository, log=shared_folder / "server.log") as running:
        load_all(running, list(ENTRIES))
        yield running
