# SPDX-License-Identifier: Apache-2.0
"""Many callers at once, a full queue, cancelling and time-outs, against a real server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builder import main as builder
from builder.tritonserver.server import Server
from tests.server.entries import ENTRIES
from tests.server.wire import BUSY_STATUS, PROTOCOLS, TIMEOUT_S, Pending, connect, infer, refusal
from tests.waiting import wait_for

pytest_plugins = ("tests.server.small_server",)

CALLERS = 40
LONG_STEPS = 900
LONG = {"num_inference_steps": LONG_STEPS}
"""A call of many seconds; one step of it takes milliseconds."""
WITH_CALLBACK = ("pictures", {"prompt": "a fox", "num_images_per_prompt": 4})
WITHOUT_CALLBACK = ("shapes", {"batch_size": 16})
BOTH = pytest.mark.parametrize(
    ("entry", "inputs"), [WITH_CALLBACK, WITHOUT_CALLBACK], ids=["callback", "no-callback"]
)


@pytest.fixture
def grpc(small_server: Server) -> Iterator[Any]:
    with connect(small_server, "grpc") as client:
        yield client


def _info(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    return dict(json.loads(outputs["info"][0]))


def _step_s(client: Any, entry: str, inputs: dict[str, Any]) -> float:
    """Seconds of one step of a call."""
    info = _info(infer(client, "grpc", entry, inputs | {"num_inference_steps": 50}))
    assert info["steps"] == 50
    return float(info["seconds"]["pipeline"]) / 50


def _assert_free_again(client: Any, entry: str, inputs: dict[str, Any], step_s: float) -> None:
    """The worker takes the next request long before a stopped one would have ended by itself."""
    started = time.monotonic()
    infer(client, "grpc", entry, inputs | {"num_inference_steps": 1})
    assert time.monotonic() - started < 0.15 * step_s * LONG_STEPS


def test_every_caller_gets_its_own_answer_once(small_server: Server, grpc: Any) -> None:
    def ask(client: Any, protocol: str, seed: int) -> np.ndarray:
        inputs = {"prompt": f"fox {seed % 3}", "seed": seed, "num_inference_steps": 1 + seed % 2}
        outputs = infer(client, protocol, "pictures", inputs)
        assert outputs["seed"].tolist() == [seed]
        return outputs["images"]

    def ask_alone(seed: int) -> np.ndarray:
        protocol = PROTOCOLS[seed % 2]
        with connect(small_server, protocol) as client:
            return ask(client, protocol, seed)

    expected = [ask(grpc, "grpc", seed) for seed in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(ask_alone, range(CALLERS), timeout=TIMEOUT_S))
    np.testing.assert_array_equal(found, expected)
    assert len({image.tobytes() for image in expected}) == CALLERS


def test_a_full_queue_refuses_at_once(small_server: Server, grpc: Any) -> None:
    pending = [Pending(grpc, "shapes", LONG | {"batch_size": 64}) for _ in range(8)]
    try:
        refused = [p.answer() for p in pending if _soon_answered(p)]
        assert len(refused) == 4  # one runs, three wait (max_queue)
        assert {error.status() for error in refused} == {BUSY_STATUS["grpc"]}
        for protocol in PROTOCOLS:
            with connect(small_server, protocol) as client:
                started = time.monotonic()
                status, message = refusal(client, protocol, "shapes", {"seed": 1})
                assert time.monotonic() - started < 2
                assert status == BUSY_STATUS[protocol]
                assert "queue is full" in message
                assert "send the request again later" in message
    finally:
        for p in pending:
            p.cancel()
    assert _served_soon(grpc, "shapes")


def _soon_answered(pending: Pending, within_s: float = 1.0) -> bool:
    end = time.monotonic() + within_s
    while not pending.is_answered() and time.monotonic() < end:
        time.sleep(0.01)
    return pending.is_answered()


def _served_soon(client: Any, entry: str) -> bool:
    """The queue has room again once the cancelled requests were dropped from it."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        try:
            return "images" in infer(client, "grpc", entry, {"seed": 1})
        except InferenceServerException as error:
            assert error.status() == BUSY_STATUS["grpc"]  # noqa: PT017 - a picture is right too
            time.sleep(0.05)
    return False


@BOTH
def test_cancel_stops_a_running_call(grpc: Any, entry: str, inputs: dict[str, Any]) -> None:
    step_s = _step_s(grpc, entry, inputs)
    pending = Pending(grpc, entry, inputs | LONG)
    assert not _soon_answered(pending, 20 * step_s)
    pending.cancel()
    _assert_free_again(grpc, entry, inputs, step_s)
    assert "CANCELLED" in str(pending.answer()).upper()


@BOTH
def test_a_client_timeout_stops_a_running_call(
    grpc: Any, entry: str, inputs: dict[str, Any]
) -> None:
    step_s = _step_s(grpc, entry, inputs)
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        infer(grpc, "grpc", entry, inputs | LONG, client_timeout=50 * step_s)
    _assert_free_again(grpc, entry, inputs, step_s)


def test_a_closed_connection_stops_a_running_call(small_server: Server, grpc: Any) -> None:
    entry, inputs = WITH_CALLBACK
    step_s = _step_s(grpc, entry, inputs)
    with connect(small_server, "grpc") as leaving:
        pending = Pending(leaving, entry, inputs | LONG)
        assert not _soon_answered(pending, 20 * step_s)
    _assert_free_again(grpc, entry, inputs, step_s)


def test_a_closed_http_connection_does_no_harm(small_server: Server, grpc: Any) -> None:
    body = json.dumps({"prompt": "a fox", "num_inference_steps": 100}).encode()
    head = f"POST /v2/models/pictures/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
    host, port = small_server.http_url.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
    assert "images" in infer(grpc, "grpc", "pictures", {"prompt": "a fox"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
@BOTH
def test_the_timeout_of_a_request_stops_it(
    small_server: Server, grpc: Any, protocol: str, entry: str, inputs: dict[str, Any]
) -> None:
    step_s = _step_s(grpc, entry, inputs)
    timeout_us = int(50 * step_s * 1e6)
    with connect(small_server, protocol) as client:
        started = time.monotonic()
        _, message = refusal(client, protocol, entry, inputs | LONG, timeout=timeout_us)
        assert time.monotonic() - started < 0.15 * step_s * LONG_STEPS
    assert "timeout" in message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_timeout_of_a_waiting_request_drops_it(
    small_server: Server, grpc: Any, protocol: str
) -> None:
    entry, inputs = WITH_CALLBACK
    running = Pending(grpc, entry, inputs | LONG)
    assert not _soon_answered(running, 0.3)  # it is under way before the other comes
    try:
        with connect(small_server, protocol) as client:
            _, message = refusal(client, protocol, entry, inputs, timeout=100_000)
        assert "timeout of 0.1 s is over" in message
        assert not running.is_answered()
    finally:
        running.cancel()
        running.answer()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_probe_is_answered_by_every_entry_without_running_it(
    small_server: Server, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = small_server.http_url if protocol == "http" else small_server.grpc_url
    expected = {f"{entry}: ready, waiting 0, running 0" for entry in ENTRIES}

    def answered() -> bool:  # what the tests before this one left may still be stopping
        assert builder.main(["probe", "--protocol", protocol, "--url", url]) == 0
        return expected <= set(capsys.readouterr().out.splitlines())

    wait_for(answered)
