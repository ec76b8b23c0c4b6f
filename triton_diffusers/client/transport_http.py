# SPDX-License-Identifier: Apache-2.0
"""Calls over HTTP, blocking: one connection a call. Safe to use from several threads.

tritonclient lays requests out and reads responses; its connections are not used: they send a
request again when a connection breaks (a generation would run twice), know no time-out per call,
are bound to one thread, and an idle one keeps a stopping server waiting.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import tritonclient.http
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from triton_diffusers.client.address import Address
from triton_diffusers.client.call import DTYPE_NAMES, WIRE_DTYPES, Call, from_region
from triton_diffusers.client.entry import Entry, read_entry
from triton_diffusers.client.errors import ServerUnavailable, error_for, timed_out
from triton_diffusers.client.regions import Region
from triton_diffusers.client.values import Array

CONNECT_TIMEOUT_S = 20.0
HEADER_LENGTH = "Inference-Header-Content-Length"

codec = tritonclient.http.InferenceServerClient


class HttpTransport:
    """Opens a connection to a server for each call."""

    streams = False

    def __init__(self, address: Address):
        self._address = address
        self._host, _, path = address.url.partition("/")
        self._path = f"/{path}".rstrip("/") + "/v2"

    def describe(self, model: str, timeout_s: float) -> Entry:
        """Read the entry's config."""
        body, _ = self._exchange("GET", f"/models/{quote(model, '')}/config", timeout_s)
        config = model_config_pb2.ModelConfig()
        return read_entry(
            json_format.ParseDict(json.loads(body), config, ignore_unknown_fields=True)
        )

    def is_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the entry takes requests."""
        with self._connection(timeout_s) as connection:
            connection.request("GET", f"{self._path}/models/{quote(model, '')}/ready")
            return connection.getresponse().status == 200

    def infer(self, call: Call) -> dict[str, Array]:
        """Run a call and return its outputs."""
        body, length = codec.generate_request_body(
            [_input(call, name, array) for name, array in call.inputs.items()],
            outputs=[_output(call, name) for name in call.outputs or ()],
            timeout=call.timeout_us,
        )
        headers = {} if length is None else {HEADER_LENGTH: str(length)}
        path = f"/models/{quote(call.model, '')}/infer"
        answer, received = self._exchange("POST", path, call.timeout_s, body, headers)
        return _decode(call, codec.parse_response_body(answer, header_length=received))

    def register(self, region: Region, timeout_s: float) -> None:
        """Let the server map a region."""
        wanted = {"key": region.key, "offset": 0, "byte_size": region.byte_size}
        path = f"/systemsharedmemory/region/{region.name}/register"
        self._exchange("POST", path, timeout_s, json.dumps(wanted).encode())

    def unregister(self, name: str, timeout_s: float) -> None:
        """Let the server unmap a region."""
        self._exchange("POST", f"/systemsharedmemory/region/{name}/unregister", timeout_s, b"")

    def close(self) -> None:
        """Nothing is open between calls."""

    def _exchange(
        self,
        method: str,
        path: str,
        timeout_s: float | None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[bytes, str | None]:
        """Send one request; return the response's body and the length of its JSON head."""
        with self._connection(timeout_s) as connection:
            connection.request(
                method, self._path + path, body, {**self._headers(), **(headers or {})}
            )
            response = connection.getresponse()
            answer = response.read()
        if response.status != 200:
            raise error_for(str(response.status), _error_text(answer))
        return answer, response.getheader(HEADER_LENGTH)

    def _headers(self) -> dict[str, str]:
        return {**self._address.headers, "Connection": "close"}

    @contextmanager
    def _connection(self, timeout_s: float | None) -> Iterator[http.client.HTTPConnection]:
        """Open a connection, and turn what goes wrong on it into our errors."""
        connection = self._open(timeout_s)
        try:
            _connect(connection, self._address.url)
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            yield connection
        except TimeoutError:
            raise timed_out(timeout_s) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnavailable(
                f"lost the connection to {self._address.url}: {reason}"
            ) from None
        finally:
            connection.close()

    def _open(self, timeout_s: float | None) -> http.client.HTTPConnection:
        timeout = CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S)
        if not self._address.ssl:
            return http.client.HTTPConnection(self._host, timeout=timeout)
        context = ssl.create_default_context(cafile=self._address.root_certificates_file)
        return http.client.HTTPSConnection(self._host, timeout=timeout, context=context)


def _connect(connection: http.client.HTTPConnection, url: str) -> None:
    try:
        connection.connect()
    except OSError as error:
        raise ServerUnavailable(f"no server answers at {url}: {error}") from None


def _error_text(body: bytes) -> str:
    """Return the text of an error response; of one that is not Triton's, its body."""
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _input(call: Call, name: str, array: Array) -> Any:
    tensor = tritonclient.http.InferInput(name, list(array.shape), DTYPE_NAMES[array.dtype])
    if name in call.input_slots and call.region is not None:
        slot = call.input_slots[name]
        return tensor.set_shared_memory(call.region.name, slot.byte_size, slot.offset)
    return tensor.set_data_from_numpy(array, binary_data=True)


def _output(call: Call, name: str) -> Any:
    tensor = tritonclient.http.InferRequestedOutput(name, binary_data=True)
    if name in call.output_slots and call.region is not None:
        slot = call.output_slots[name]
        tensor.set_shared_memory(call.region.name, slot.byte_size, slot.offset)
    return tensor


def _decode(call: Call, response: Any) -> dict[str, Array]:
    outputs = {}
    for tensor in response.get_response().get("outputs", []):
        name = tensor["name"]
        if name in call.output_slots:
            dtype, shape = WIRE_DTYPES[tensor["datatype"]], tuple(tensor["shape"])
            outputs[name] = from_region(call, name, dtype, shape)
        else:
            outputs[name] = response.as_numpy(name)
    return outputs
