# SPDX-License-Identifier: Apache-2.0
"""Servers with entries of the demo's pipeline, under other names and options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from builder.tritonserver.server import Server, start_server
from tests.server.conftest import MODEL_REPOSITORY
from tests.server.entries import add_entry

PIPELINE = MODEL_REPOSITORY / "demo" / "pipeline"
SMALL = ("--diffusers-call-kwargs", json.dumps({"height": 64, "width": 64}))


def add_demo(folder: Path, name: str, *options: str) -> None:
    """Write an entry with the demo's pipeline."""
    add_entry(folder / "models", name, PIPELINE, "--device", "cpu", *SMALL, *options)


@contextmanager
def serve_entries(folder: Path, entries: Mapping[str, tuple[str, ...]]) -> Iterator[Server]:
    """Serve entries (name -> options), and what is in the repository already."""
    for name, options in entries.items():
        add_demo(folder, name, *options)
    names = sorted(path.name for path in (folder / "models").iterdir())
    log = folder / "server.log"
    with start_server(folder / "models", names, log=log, exit_timeout_s=0) as server:
        yield server
