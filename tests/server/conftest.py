# SPDX-License-Identifier: Apache-2.0
"""A server with the demo model, and the end of a server's log in the report of a failed test."""

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from builder.tritonserver.server import Server, start_server
from tests.server.entries import add_entry, load_all
from tests.server.tiny_entries import tiny_server as tiny_server
from triton_diffusers.client import DiffusersClient

MODEL_REPOSITORY = Path(__file__).parent.parent.parent / "model_repository"
PREVIEWED = {"height": 64, "width": 64, "num_inference_steps": 8, "max_sequence_length": 32}


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model on a real server; a missing tritonserver is an error, never a skip."""
    log = tmp_path_factory.mktemp("demo-server") / "server.log"
    with start_server(MODEL_REPOSITORY, ["demo"], log=log, exit_timeout_s=0) as server:
        yield server


@pytest.fixture(scope="session")
def preview_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo as an entry that streams, which `first_preview` teaches colours, and as another."""
    folder = tmp_path_factory.mktemp("previews")
    call = ("--diffusers-call-kwargs", json.dumps(PREVIEWED))
    for name, options in (("streams", ("--decoupled",)), ("plain", ())):
        demo = MODEL_REPOSITORY / "demo" / "pipeline"
        add_entry(folder / "repository", name, demo, *call, *options)
    log = folder / "server.log"
    with start_server(folder / "repository", log=log, exit_timeout_s=0) as server:
        load_all(server, ["streams", "plain"])
        yield server


@pytest.fixture(scope="session")
def first_preview(preview_server: Server) -> dict[str, Any]:
    """What the first of the calls told that colours are learned from: it had no previews yet."""
    words = ("zero", "one", "two", "three", "four", "five", "six", "eight")
    with DiffusersClient(preview_server.grpc_url, "streams") as client:
        infos = [
            client.generate(prompt=f"a handwritten {word}", seed=seed, preview_every=1).info
            for seed, word in enumerate(words)
        ]
    return infos[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, Any]:
    """Show what the servers of a failed test said."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Server):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
