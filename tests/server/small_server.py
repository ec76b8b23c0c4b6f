# SPDX-License-Identifier: Apache-2.0
"""One real tritonserver with six small entries, shared by the test modules that name this plugin.

A module asks for it with `pytest_plugins = ("tests.server.small_server",)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from builder.tritonserver.server import Server, start_server
from tests.server.entries import ENTRIES, load_all, write_entries


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `models` and `repository` of the shared server."""
    return tmp_path_factory.mktemp("shared-server")


@pytest.fixture(scope="session")
def small_server(shared_folder: Path) -> Iterator[Server]:
    """The shared server with every entry loaded."""
    repository = write_entries(shared_folder, ENTRIES)
    with start_server(repository, log=shared_folder / "server.log", exit_timeout_s=0) as running:
        load_all(running, list(ENTRIES))
        yield running
