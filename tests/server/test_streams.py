# SPDX-License-Identifier: Apache-2.0
"""A decoupled entry: progress responses, then one final response, over gRPC streams and HTTP."""

from __future__ import annotations

import json
import queue
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from builder.tritonserver.server import Server
from tests.server.wire import TIMEOUT_S, connect, infer, make_inputs, post
from triton_diffusers.client import DiffusersClient, InvalidRequest
from triton_diffusers.client.errors import error_for

pytest_plugins = ("tests.server.small_server",)

STEPS = 5
INPUTS = {"prompt": "a fox", "seed": 3, "num_inference_steps": STEPS}


class Stream:
    """A gRPC stream and what came over it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, inputs: dict[str, Any]) -> None:
        self._client.async_stream_infer("streams", make_inputs("grpc", inputs))

    def next(self) -> tuple[Any, Any]:
        """The next (result, error)."""
        return self._answers.get(timeout=TIMEOUT_S)

    def all(self) -> list[Any]:
        """Every result up to the final one."""
        found = []
        while True:
            result, error = self.next()
            assert error is None, error
            found.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found

    def is_silent(self, for_s: float = 0.3) -> bool:
        time.sleep(for_s)
        return self._answers.empty()


@pytest.fixture
def stream(small_server: Server) -> Iterator[Stream]:
    with connect(small_server, "grpc") as client:
        made = Stream(client)
        yield made
        client.stop_stream(cancel_requests=True)


def test_progress_then_one_result(small_server: Server, stream: Stream) -> None:
    stream.send(INPUTS)
    *steps, last = stream.all()
    assert [s.as_numpy("progress").tolist() for s in steps] == [
        [done, STEPS] for done in range(1, STEPS + 1)
    ]
    assert all(s.as_numpy("progress").dtype == np.int64 for s in steps)
    assert all(len(s.get_response().outputs) == 1 for s in steps)
    assert last.as_numpy("progress") is None
    assert stream.is_silent()
    with connect(small_server, "grpc") as client:
        plain = infer(client, "grpc", "pictures", INPUTS)
    np.testing.assert_array_equal(last.as_numpy("images"), plain["images"])


def test_several_requests_of_one_stream(stream: Stream) -> None:
    for seed in range(3):
        stream.send(INPUTS | {"seed": seed})
    finals = [stream.all()[-1] for _ in range(3)]
    assert [f.as_numpy("seed").tolist() for f in finals] == [[0], [1], [2]]


def test_a_bad_request_of_a_stream_gets_one_error(stream: Stream) -> None:
    stream.send(INPUTS | {"height": 17})
    result, error = stream.next()
    assert error.message().startswith(
        "[StatusCode.INVALID_ARGUMENT] StableDiffusionPipeline refuses"
    )
    assert "divisible by 8" in error.message()
    assert result is None
    stream.send(INPUTS)
    assert stream.all()[-1].as_numpy("images") is not None


def test_many_refusals_at_once_leave_the_server_alive(small_server: Server) -> None:
    """Triton 2.51 crashed of them where a client asked for statuses with `triton_grpc_error`."""

    def refused(_: int) -> str:
        with pytest.raises(InvalidRequest, match="divisible by 8") as caught:
            client.generate(**INPUTS, height=17)
        return str(caught.value.status)

    with (
        DiffusersClient(small_server.grpc_url, model="streams") as client,
        ThreadPoolExecutor(8) as callers,
    ):
        statuses = set(callers.map(refused, range(200)))
        assert statuses == {"StatusCode.INVALID_ARGUMENT"}
        assert client.generate(**INPUTS).seeds == [3]


def test_what_triton_itself_refuses_of_a_stream(small_server: Server, stream: Stream) -> None:
    for wrong in ({"nonsense": 1}, {"seed": 3.5}, {"prompt": np.zeros((1, 2, 3), np.int64)}):
        stream.send(INPUTS | wrong)
        _, error = stream.next()
        assert type(error_for(None, error.message())) is InvalidRequest, error.message()


def test_a_cancelled_stream_stops_its_call(small_server: Server) -> None:
    with connect(small_server, "grpc") as client:
        leaving = Stream(client)
        leaving.send(INPUTS | {"num_inference_steps": 900})
        started = time.monotonic()
        for _ in range(20):
            leaving.next()
        step_s = (time.monotonic() - started) / 20
        client.stop_stream(cancel_requests=True)
        following = Stream(client)
        started = time.monotonic()
        following.send(INPUTS)
        following.all()
        assert time.monotonic() - started < 0.15 * 900 * step_s
        client.stop_stream(cancel_requests=True)


def test_generate_stream_sends_progress_as_events(small_server: Server) -> None:
    body = json.dumps(INPUTS | {"output_format": "png", "output_base64": True}).encode()
    url = f"http://{small_server.http_url}/v2/models/streams/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [e["progress"] for e in events[:-1]] == [[d, STEPS] for d in range(1, STEPS + 1)]
    assert events[-1]["media"].startswith("iVBORw0KGgo")


def test_a_stream_of_a_plain_entry_gives_one_event(small_server: Server) -> None:
    status, text = post(small_server, "models/pictures/generate_stream", INPUTS)
    assert status == 200
    assert text.count("data: ") == 1


def test_unary_calls_of_a_decoupled_entry_are_refused_in_words(small_server: Server) -> None:
    _, text = post(small_server, "models/streams/generate", INPUTS)  # Triton says it with a 200
    assert "use generate stream" in json.loads(text)["error"]
    status, text = post(small_server, "models/streams/infer", {"inputs": []})
    assert status in (400, 500, 501), text
    assert "decoupled" in text


def test_a_parameter_that_is_not_utf8_gets_one_error(small_server: Server) -> None:
    body = b'{"prompt": "x", "foo": "\xff"}'
    _, text = post(small_server, "models/streams/generate_stream", body)
    assert text.count("not UTF-8") == 1
    status, text = post(small_server, "models/streams/generate_stream", INPUTS)
    assert (status, text.count("data: ")) == (200, STEPS + 1)
