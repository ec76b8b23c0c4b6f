# SPDX-License-Identifier: Apache-2.0
"""Unloading gives memory back: the stub ends, and the server itself does not grow."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.tritonserver.server import Server, ServerError, start_server
from tests.server.builder_serve import add_model
from tests.server.entries import add_entry
from triton_diffusers.client import AsyncDiffusersClient, Cancelled

MODEL_REPOSITORY = Path(__file__).parents[2] / "model_repository"
WARM, ROUNDS = 3, 17
GROWTH = 1.05


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: the demo with its last component cut, one that streams, a light one."""
    folder = tmp_path_factory.mktemp("unload")
    shutil.copytree(MODEL_REPOSITORY / "demo", folder / "repository" / "cut")
    config = folder / "repository" / "cut" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "demo"', 'name: "cut"'))
    for weights in (folder / "repository" / "cut" / "pipeline").glob("*/*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-100])
    add_entry(folder / "repository", "streams", MODEL_REPOSITORY / "demo/pipeline", "--decoupled")
    add_model(folder / "repository", "light")
    with start_server(folder / "repository", log=folder / "server.log") as started:
        yield started


def own_memory(server: Server) -> int:
    """The server process's resident bytes; its stubs are processes of their own."""
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(server: Server, pid: int) -> bool:
    end = time.monotonic() + 20
    while (is_alive(pid) or server.stubs()) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(pid) and not server.stubs()


def test_a_model_whose_streams_ran_out_of_time_can_be_unloaded(server: Server) -> None:
    """Triton does not let go of a model whose stream a client left at its last response."""
    server.load("streams", timeout_s=120)
    (stub,) = server.stubs()
    made, late = asyncio.run(run_out_of_time(server, calls=120))
    assert made > 10, (made, late)
    assert late > 2, (made, late)
    server.unload("streams")
    assert gone(server, stub.pid), (made, late)


async def run_out_of_time(server: Server, calls: int) -> tuple[int, int]:
    """Make calls whose time is over at about their last response; return the made and the late."""
    inputs = {"prompt": "a one", "height": 64, "width": 64, "num_inference_steps": 4}
    shares, late = random.Random(1), 0
    async with AsyncDiffusersClient(server.grpc_url, model="streams") as client:
        await client.generate(**inputs)
        started = time.monotonic()
        await client.generate(**inputs)
        usual_s = time.monotonic() - started
        for _ in range(calls):
            try:
                await client.generate(**inputs, timeout_s=usual_s * shares.uniform(0.7, 1.1))
            except Cancelled:
                late += 1
    return calls - late, late


def test_the_stub_of_a_failed_load_is_gone(server: Server) -> None:
    with pytest.raises(ServerError, match="incomplete or damaged"):
        server.load("cut", timeout_s=120)
    end = time.monotonic() + 20
    while server.stubs() and time.monotonic() < end:
        time.sleep(0.05)
    assert not server.stubs()


def test_twenty_rounds_leave_the_server_as_large_as_it_was(server: Server) -> None:
    """With a model that loads in no time; test_lifecycle has a few rounds with a pipeline."""
    sizes = []
    for _ in range(WARM + ROUNDS):
        server.load("light", timeout_s=60)
        (stub,) = server.stubs()
        server.unload("light")
        assert gone(server, stub.pid)
        sizes.append(own_memory(server))
    before = statistics.median(sizes[WARM - 2 : WARM + 1])
    after = statistics.median(sizes[-3:])
    assert after / before < GROWTH, [round(size / 2**20, 1) for size in sizes]
