# SPDX-License-Identifier: Apache-2.0
"""A server with the demo model, and the end of a server's log in the report of a failed test."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from builder.tritonserver.server import Server, start_server
from tests.server.tiny_entries import tiny_server as tiny_server

MODEL_REPOSITORY = Path(__file__).parent.parent.parent / "model_repository"


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model on a real server; a missing tritonserver is an error, never a skip."""
    log = tmp_path_factory.mktemp("demo-server") / "server.log"
    with start_server(MODEL_REPOSITORY, ["demo"], log=log, exit_timeout_s=0) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, Any]:
    """Show what the servers of a failed test said."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Server):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
