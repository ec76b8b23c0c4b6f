# SPDX-License-Identifier: Apache-2.0
"""Models that come, go and change, on several servers, of which some are down or hang."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.calling import TIMEOUT_S, check_error, generate, wait_for
from tests.server.gateway.servers import PIPELINE, add_demo, serve_entries
from tests.server.gateway.serving import serve_gateway

LOAD_S = 60.0
QUICK_S = 1.0
HUB_ID = "acme/digits"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serve_entries(folder, {"first": (), "second": ()}) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with serve_gateway(server.grpc_url) as base:
        yield base


def names(url: str) -> list[str]:
    response = httpx.get(f"{url}/v1/models", timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return [model["id"] for model in response.json()["data"]]


def inputs(url: str, name: str) -> dict[str, object]:
    model = httpx.get(f"{url}/v1/models/{name}", timeout=TIMEOUT_S).json()
    return {tensor["name"]: tensor["default"] for tensor in model["inputs"]}


def hub_id(url: str, name: str) -> str | None:
    told: str | None = httpx.get(f"{url}/v1/models/{name}", timeout=TIMEOUT_S).json()["hub_id"]
    return told


def as_of_the_hub(entry: Path) -> None:
    """Name an entry's pipeline as the hub would; the model is a folder in the entry."""
    (entry / HUB_ID).parent.mkdir(exist_ok=True)
    (entry / HUB_ID).symlink_to(PIPELINE)
    config = entry / "config.pbtxt"
    config.write_text(config.read_text().replace(str(PIPELINE), HUB_ID))


def test_a_model_that_is_unloaded_is_gone_and_one_that_is_loaded_is_there(
    server: Server, folder: Path, url: str
) -> None:
    assert names(url) == ["first", "second"]
    server.unload("second")
    error = check_error(generate(url, model="second"), 404, "model_not_found")
    assert "'second'" in error["message"]
    wait_for(lambda: names(url) == ["first"], 5)
    server.load("second", LOAD_S)
    assert generate(url, model="second").status_code == 200  # at once
    add_demo(folder, "third")
    check_error(generate(url, model="third"), 404, "model_not_found")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(server.load, "third", LOAD_S)
        seen = []
        while not seen or (seen[-1].status_code == 404 and not loading.done()):
            seen.append(generate(url, model="third"))
        check_error(seen[-1], 503, "overloaded")
        assert "is being loaded" in seen[-1].json()["error"]["message"]
        assert "retry-after" in seen[-1].headers
        loading.result(LOAD_S)
    assert generate(url, model="third").status_code == 200
    server.unload("third")


def test_an_entry_that_changed_is_known_as_it_is_now(
    server: Server, folder: Path, url: str
) -> None:
    assert generate(url, model="second", num_images_per_prompt=2).status_code == 200
    assert inputs(url, "second")["height"] == 64
    shutil.rmtree(folder / "models" / "second")
    add_demo(folder, "second", "--max-outputs", "1", "--decoupled")
    server.load("second", LOAD_S)
    check_error(generate(url, model="second", num_images_per_prompt=2), 400)
    assert generate(url, model="second").status_code == 200
    wait_for(lambda: "preview_every" in inputs(url, "second"), 5)
    response = generate(url, model="second", stream=True, stream_progress=True)
    assert "image_generation.progress" in response.text


def test_a_hub_id_names_its_only_entry_but_not_one_of_several(
    server: Server, folder: Path, url: str
) -> None:
    assert httpx.get(f"{url}/v1/models/second", timeout=TIMEOUT_S).json()["hub_id"] is None
    for name in ("first", "second"):
        as_of_the_hub(folder / "models" / name)
        server.load(name, LOAD_S)
    wait_for(lambda: {hub_id(url, name) for name in ("first", "second")} == {HUB_ID}, 5)
    error = check_error(generate(url, model=HUB_ID), 400, "model_required")
    assert "first, second" in error["message"]
    error = check_error(generate(url), 400, "model_required")
    assert "first, second" in error["message"]
    server.unload("first")
    wait_for(lambda: names(url) == ["second"], 5)
    assert generate(url, model=HUB_ID).json()["model"] == "second"


def test_a_server_that_is_down_does_not_hold_up_the_others(demo_server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
    with serve_gateway(nobody, demo_server.grpc_url) as url:
        assert generate(url, model="demo").status_code == 200
        started = time.monotonic()
        assert generate(url, model="demo").status_code == 200
        assert names(url) == ["demo"]
        error = check_error(generate(url, model="other"), 404)
        assert nobody in error["message"]  # it may have the model
        assert time.monotonic() - started < 2 * QUICK_S


def test_a_server_that_hangs_does_not_hold_up_the_others(
    server: Server, demo_server: Server
) -> None:
    with serve_gateway(server.grpc_url, demo_server.grpc_url) as url:
        assert {"demo", "second"} <= set(names(url))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 12
            while time.monotonic() < deadline:
                started = time.monotonic()
                assert generate(url, model="demo").status_code == 200
                assert "demo" in names(url)
                assert time.monotonic() - started < QUICK_S
                if "second" not in names(url):
                    break
                time.sleep(0.2)
            assert names(url) == ["demo"]  # it was found to hang
            started = time.monotonic()
            error = check_error(generate(url, model="second"), 502, "upstream_unavailable")
            assert server.grpc_url in error["message"]
            assert time.monotonic() - started < 3 * QUICK_S
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_for(lambda: generate(url, model="second").status_code == 200, 10)


def test_a_server_that_accepts_and_says_nothing_does_not_hold_up_the_start(
    demo_server: Server,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with serve_gateway(address, demo_server.grpc_url) as url:
            started = time.monotonic()
            assert generate(url, model="demo").status_code == 200
            assert time.monotonic() - started < 3 * QUICK_S


def test_equal_entries_on_two_servers_take_turns(tmp_path: Path, demo_server: Server) -> None:
    with (
        serve_entries(tmp_path, {"demo": ()}) as second,
        serve_gateway(demo_server.grpc_url, second.grpc_url) as url,
    ):
        before = [count(server) for server in (demo_server, second)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: generate(url, model="demo"), range(8)))
        assert {answer.status_code for answer in answers} == {200}

        def added() -> list[float]:
            now = [count(server) for server in (demo_server, second)]
            return [b - a for a, b in zip(before, now, strict=True)]

        wait_for(lambda: sum(added()) == 8, 5)
        assert added() == [4, 4]
        second.kill()
        wait_for(lambda: generate(url, model="demo").status_code == 200, 5)
        wait_for(lambda: all(generate(url).status_code == 200 for _ in range(4)), 10)


def count(server: Server) -> float:
    lines = server.metrics().splitlines()
    start = 'nv_inference_request_success{model="demo"'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_the_http_port_of_a_server_is_told_to_be_the_wrong_one(demo_server: Server) -> None:
    with serve_gateway(demo_server.http_url) as url:
        error = check_error(generate(url, model="demo"), 502, "upstream_unavailable")
    assert "gRPC port, which is 8001 by default" in error["message"]
