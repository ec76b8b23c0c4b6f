# SPDX-License-Identifier: Apache-2.0
"""Loading and unloading again and again, and the end of a server, with requests under way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.tritonserver.server import Server, start_server
from tests.server.entries import Entry, write_entries
from tests.server.test_unload import GROWTH, own_memory
from tests.server.wire import BUSY_STATUS, Pending, admin, connect, infer, refusal
from tests.waiting import wait_for as _until

LOADS = 4
ENTRY = {"shapes": Entry("ddpm", {"num_inference_steps": 2})}
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lifecycle")
    write_entries(made, ENTRY)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of its own, which the last test ends."""
    with start_server(folder / "repository", log=folder / "server.log") as started:
        yield started


def _region(server: Server) -> Path:
    """The shared memory of the only stub."""
    (stub,) = server.stubs()
    return SHARED_MEMORY / Path(stub.region).name


def test_loading_and_unloading_leaves_nothing_behind(server: Server) -> None:
    sizes, memory = [], []
    for _ in range(LOADS):
        server.load("shapes", timeout_s=120)
        region = _region(server)
        with connect(server, "grpc") as client:
            assert infer(client, "grpc", "shapes", {"seed": 1})["images"].any()
        sizes.append(region.stat().st_size)
        server.unload("shapes")
        assert _until(lambda: not server.stubs())
        assert _until(lambda region=region: not region.exists())
        memory.append(own_memory(server))
    assert len(set(sizes)) == 1
    assert memory[-1] / memory[1] < GROWTH, memory


def test_unload_finishes_what_runs(server: Server) -> None:
    server.load("shapes", timeout_s=120)
    with connect(server, "grpc") as client:
        pending = [Pending(client, "shapes", {"num_inference_steps": 200}) for _ in range(3)]
        time.sleep(0.2)
        client.unload_model("shapes", headers=admin(server, "grpc"))
        assert [p.answer().as_numpy("images").shape for p in pending] == [(1, 16, 16, 3)] * 3
    assert _until(lambda: not server.stubs())
    with connect(server, "http") as client:
        status, message = refusal(client, "http", "shapes", {"seed": 1})
    assert status in ("400", "404", BUSY_STATUS["http"])
    assert "shapes" in message


def test_sigterm_finishes_what_runs(server: Server) -> None:
    server.load("shapes", timeout_s=120)
    with connect(server, "grpc") as client:
        pending = Pending(client, "shapes", {"num_inference_steps": 300})
        time.sleep(0.3)
        server.process.terminate()
        assert pending.answer().as_numpy("images").shape == (1, 16, 16, 3)
    assert server.process.wait(30) == 0
    assert _until(lambda: not server.stubs())
