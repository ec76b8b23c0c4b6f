# SPDX-License-Identifier: Apache-2.0
"""Six small entries for a real tritonserver, and how a test writes and loads entries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder import main as builder
from builder.tritonserver.server import Server
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
        (
            *("--max-input-bytes", "65536", "--max-input-pixels", "1048576"),
            *("--max-input-pixels-in-all", "1500000", "--max-work", "3"),
            *("--max-pixels", "600000"),
        ),
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


def unload_all(server: Server, names: Iterable[str]) -> None:
    """Unload entries side by side: a process takes seconds to end."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(server.unload, names))


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
