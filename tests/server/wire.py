# SPDX-License-Identifier: Apache-2.0
"""Requests with plain tritonclient, over HTTP and gRPC alike: nothing is checked on this side."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from builder.tritonserver.server import Server
from triton_diffusers.config import admin_key
from triton_diffusers.contract import ADMIN_HEADER

PROTOCOLS = ("http", "grpc")
TIMEOUT_S = 60
BAD_STATUS = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}
BROKEN_STATUS = {"http": "500", "grpc": "StatusCode.INTERNAL"}
BUSY_STATUS = {"http": "503", "grpc": "StatusCode.UNAVAILABLE"}

_CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def connect(server: Server, protocol: str) -> Iterator[Any]:
    """A plain client, closed in the end: an open connection would hold the server's exit."""
    if protocol == "http":
        client = tritonclient.http.InferenceServerClient(
            server.http_url, concurrency=4, network_timeout=TIMEOUT_S, connection_timeout=TIMEOUT_S
        )
    else:
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    try:
        yield client
    finally:
        client.close()


def admin(server: Server, protocol: str) -> dict[str, str]:
    """The header that administrative calls of plain tritonclient need."""
    grpc = dict(admin_key.as_metadata(server.admin_key))
    return {ADMIN_HEADER: server.admin_key} if protocol == "http" else grpc


def as_array(value: Any) -> np.ndarray:
    """Python values as the tensors that a caller would make of them; arrays stay as they are."""
    if isinstance(value, np.ndarray):
        return value
    values = value if isinstance(value, list) else [value]
    if all(isinstance(v, bool) for v in values):
        return np.array(values, np.bool_)
    if all(isinstance(v, int) for v in values):
        return np.array(values, np.int64)
    if all(isinstance(v, int | float) for v in values):
        return np.array(values, np.float64)
    return np.array([v.encode() if isinstance(v, str) else v for v in values], np.object_)


def make_inputs(protocol: str, inputs: Mapping[str, Any]) -> list[Any]:
    """The request's input objects."""
    made = []
    for name, value in inputs.items():
        array = as_array(value)
        tensor = _CLIENTS[protocol].InferInput(
            name, list(array.shape), np_to_triton_dtype(array.dtype)
        )
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def infer(
    client: Any, protocol: str, entry: str, inputs: Mapping[str, Any], **options: Any
) -> dict[str, np.ndarray]:
    """Every output tensor of one request, or those of `wanted`. Raises InferenceServerException."""
    if wanted := options.pop("wanted", None):
        options["outputs"] = [_CLIENTS[protocol].InferRequestedOutput(name) for name in wanted]
    if protocol == "grpc":
        options.setdefault("client_timeout", TIMEOUT_S)
    result = client.infer(entry, make_inputs(protocol, inputs), **options)
    answer = result.get_response()
    outputs = answer["outputs"] if isinstance(answer, dict) else answer.outputs
    names = [o["name"] if isinstance(o, dict) else o.name for o in outputs]
    return {name: result.as_numpy(name) for name in names}


def refusal(
    client: Any, protocol: str, entry: str, inputs: Mapping[str, Any], **options: Any
) -> tuple[str, str]:
    """Status and message of a request that must not be served."""
    try:
        outputs = infer(client, protocol, entry, inputs, **options)
    except InferenceServerException as error:
        return str(error.status()), error.message()
    raise AssertionError(f"served: {sorted(outputs)}")


class Pending:
    """A gRPC request that is under way."""

    def __init__(self, client: Any, entry: str, inputs: dict[str, Any], **options: Any) -> None:
        self._answers: queue.Queue[Any] = queue.Queue()
        self._context = client.async_infer(
            entry,
            make_inputs("grpc", inputs),
            lambda result, error: self._answers.put(error or result),
            **options,
        )

    def cancel(self) -> None:
        self._context.cancel()

    def answer(self) -> Any:
        """The result, or the error."""
        return self._answers.get(timeout=TIMEOUT_S)

    def is_answered(self) -> bool:
        return not self._answers.empty()


def post(server: Server, path: str, body: Any, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Status and text of a raw HTTP request; bytes are sent as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", data=data)
    try:
        with _DIRECT.open(request, timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
