# SPDX-License-Identifier: Apache-2.0
"""Calls that fail on a real server: the caller is told, and the next request is served."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builder.tritonserver.server import Server, start_server
from tests import tiny
from tests.server.entries import SMALL, add_entry, load_all
from tests.server.test_metrics import scrape, until, value
from tests.server.wire import BROKEN_STATUS, BUSY_STATUS, PROTOCOLS, connect, infer, refusal

FAULTY = Path(__file__).with_name("faulty.py")
ENTRIES: dict[str, tuple[str, ...]] = {
    "alone": (),
    "together": ("--request-batching", "--max-batch", "4"),
    "watched": ("--stuck-after-s", "1.5"),
    "sharing": ("--gpu-lock", "card"),
    "sharing_too": ("--gpu-lock", "card"),
}
GOOD = {"prompt": "a fox", "seed": 1}
BOTH = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("faults")
    model = tiny.save("stable-diffusion", folder)
    call = ("--diffusers-call-kwargs", json.dumps(SMALL), "--custom-pipeline", str(FAULTY))
    for name, options in ENTRIES.items():
        add_entry(folder / "repository", name, model, *call, *options)
    log = folder / "server.log"
    with start_server(folder / "repository", log=log, exit_timeout_s=0) as running:
        load_all(running, list(ENTRIES))
        yield running


@BOTH
def test_out_of_memory_is_told_and_the_next_request_served(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client:
        wanted = infer(client, protocol, "alone", GOOD)["images"]
        inputs = GOOD | {"prompt": "memory", "height": 24, "num_images_per_prompt": 3}
        status, message = refusal(client, protocol, "alone", inputs)
        assert status == BROKEN_STATUS[protocol]
        for words in ("out of memory", "height 24", "3 outputs", "ask for less", "20.00 GiB"):
            assert words in message
        assert "Traceback" not in message
        np.testing.assert_array_equal(infer(client, protocol, "alone", GOOD)["images"], wanted)


@BOTH
def test_an_error_is_told_and_the_next_request_served(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client:
        status, message = refusal(client, protocol, "alone", GOOD | {"prompt": "an error"})
        assert status == BROKEN_STATUS[protocol]
        assert "RuntimeError: the denoiser fails" in message
        assert "images" in infer(client, protocol, "alone", GOOD)


@BOTH
def test_pictures_of_nan_are_reported(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client:
        outputs = infer(client, protocol, "alone", GOOD | {"prompt": "nan"})
        assert outputs["images"].max() == 0
        (warning,) = json.loads(outputs["info"][0])["warnings"]
        assert "NaN" in warning
        assert json.loads(infer(client, protocol, "alone", GOOD)["info"][0])["warnings"] == []


@BOTH
@pytest.mark.parametrize("fault", ["an error", "memory"])
def test_one_that_fails_does_not_fail_its_batch(server: Server, protocol: str, fault: str) -> None:
    prompts = ["a fox", "a cat", fault, "a dog"]

    def ask(number: int) -> Any:
        with connect(server, protocol) as client:
            inputs = {"prompt": prompts[number % 4], "seed": number}
            try:
                return infer(client, protocol, "together", inputs)["images"]
            except InferenceServerException as error:
                return error

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(16)))
    with connect(server, protocol) as client:
        for number, result in enumerate(found):
            if number % 4 == 2:
                assert isinstance(result, InferenceServerException)
                assert "denoiser fails" in str(result) or "out of memory" in str(result)
                continue
            inputs = {"prompt": prompts[number % 4], "seed": number}
            alone = infer(client, protocol, "alone", inputs)["images"]
            assert np.abs(result.astype(int) - alone).max() <= 1


def test_waiting_requests_run_as_one(server: Server) -> None:
    def ask(number: int) -> dict[str, Any]:
        with connect(server, "grpc") as client:
            outputs = infer(client, "grpc", "together", {"prompt": "a fox", "seed": number})
            assert outputs["seed"].tolist() == [number]
            return dict(json.loads(outputs["info"][0]))

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(24)))
    assert max(info["batch"] for info in told) > 1
    assert told[-1]["request_batching"]["not_joined"] == []
    assert told[-1]["request_batching"]["largest_difference"] < 1e-3


@BOTH
def test_a_stuck_call_is_found_and_loading_again_mends_it(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client, ThreadPoolExecutor(1) as pool:
        with connect(server, protocol) as another:
            stuck = pool.submit(refusal, another, protocol, "watched", GOOD | {"prompt": "stuck"})
            status, message = stuck.result(30)
        assert status == BUSY_STATUS[protocol]
        assert "no step for 1.5 s" in message
        started = time.monotonic()
        for parameters in ({}, {"probe": True}):
            status, message = refusal(client, protocol, "watched", GOOD, parameters=parameters)
            assert status == BUSY_STATUS[protocol]
            assert "stuck" in message or "no step for" in message
        assert time.monotonic() - started < 3
        server.unload("watched")
        server.load("watched", timeout_s=120)
        assert "images" in infer(client, protocol, "watched", GOOD)


@BOTH
def test_a_probe_is_answered_without_running_anything(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client:
        inputs = {"prompt": ""}
        outputs = infer(client, protocol, "alone", inputs, parameters={"probe": True})
        assert set(outputs) == {"info"}
        health = json.loads(outputs["info"][0])
        assert health["status"] == "ready"
        assert health["waiting"] == health["running"] == 0


@BOTH
def test_a_priority_that_is_no_number_is_refused(server: Server, protocol: str) -> None:
    with connect(server, protocol) as client:
        infer(client, protocol, "alone", GOOD, parameters={"queue_priority": -2})
        _, message = refusal(
            client, protocol, "alone", GOOD, parameters={"queue_priority": "first"}
        )
        assert "'queue_priority': 'first'; send a whole number" in message


def test_lower_priorities_overtake_those_that_wait(server: Server) -> None:
    done: list[int] = []

    def ask(priority: int) -> None:
        with connect(server, "grpc") as client:
            inputs = GOOD | {"num_inference_steps": 40}
            infer(client, "grpc", "alone", inputs, parameters={"queue_priority": priority})
            done.append(priority)

    with ThreadPoolExecutor(8) as pool:
        running = pool.submit(ask, 0)
        time.sleep(0.1)
        waiting = []
        for priority in (5, 4, 3, 2, 1):
            waiting.append(pool.submit(ask, priority))
            time.sleep(0.02)
        for future in (running, *waiting):
            future.result(60)
    assert done.index(1) < done.index(5)


def test_entries_share_a_gpu_in_turns_and_a_dead_one_lets_go(server: Server) -> None:
    """The last test here: Triton does not let go of a dead model that was sent a request."""

    def waits() -> bool:
        return value(scrape(server), "gpu_lock_waiting", model="sharing_too") == 1

    with connect(server, "grpc") as client:
        wanted = infer(client, "grpc", "alone", GOOD)["images"]
        assert "gpu_lock" in _seconds(infer(client, "grpc", "sharing", GOOD))
    with ThreadPoolExecutor(2) as pool, connect(server, "grpc") as own:
        stuck = pool.submit(_outcome, server, "sharing", GOOD | {"prompt": "stuck", "seed": 2})
        assert until(lambda: value(scrape(server), "running", model="sharing") == 1)
        _, message = refusal(own, "grpc", "sharing_too", GOOD, timeout=500_000)
        assert "timeout" in message  # before the other's 6 s of each step are over
        assert not stuck.done()
        waiting = pool.submit(_outcome, server, "sharing_too", GOOD)
        assert until(waits)
        (holder,) = (stub for stub in server.stubs() if stub.model == "sharing")
        os.kill(holder.pid, signal.SIGKILL)
        outputs = waiting.result(60)
        np.testing.assert_array_equal(outputs["images"], wanted)
        assert _seconds(outputs)["gpu_lock"] > 0
        assert until(lambda: not waits())


def _seconds(outputs: dict[str, Any]) -> dict[str, float]:
    return dict(json.loads(outputs["info"][0])["seconds"])


def _outcome(server: Server, model: str, inputs: dict[str, Any]) -> Any:
    with connect(server, "grpc") as client:
        try:
            return infer(client, "grpc", model, inputs)
        except InferenceServerException as error:
            return error
