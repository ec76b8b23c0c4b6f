# SPDX-License-Identifier: Apache-2.0
"""Calls over HTTP, blocking: one connection a call. Safe to use from several threads.

The standard library's connections are used and not tritonclient's: those know no time-out per
call, are bound to one thread, and may send a request again when a connection breaks, so that a
generation runs twice. An idle connection would keep a stopping server waiting.
"""

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import quote

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from triton_diffusers.client.address import Address, other_protocol
from triton_diffusers.client.call import InferenceRequest
from triton_diffusers.client.entry import ServedEntry, read_entry
from triton_diffusers.client.errors import ServerUnavailable, error_for, printable, timed_out
from triton_diffusers.client.regions import Region
from triton_diffusers.client.transports.http_messages import decode_response, encode_call
from triton_diffusers.config import admin_key
from triton_diffusers.media.pixels import Array

CONNECT_TIMEOUT_S = 20.0
NO_HEADERS: Mapping[str, str] = {}
HEAD_LENGTH = "Inference-Header-Content-Length"


class HttpTransport:
    """Opens a connection to a server for each call."""

    streams = False

    def __init__(self, address: Address):
        self._address = address
        self._closed = False
        self._host, _, path = address.url.partition("/")
        self._path = f"/{path}".rstrip("/") + "/v2"

    def describe(self, model: str, timeout_s: float) -> ServedEntry:
        """Read the entry's config."""
        body, _ = self._exchange("GET", f"/models/{quote(model, '')}/config", timeout_s)
        config = model_config_pb2.ModelConfig()
        return read_entry(
            json_format.ParseDict(json.loads(body), config, ignore_unknown_fields=True)
        )

    def is_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the entry takes requests; one that does not is an error, as HTTP has it."""
        self._exchange("GET", f"/models/{quote(model, '')}/ready", timeout_s)
        return True

    def infer(self, call: InferenceRequest) -> dict[str, Array]:
        """Run a call and return its outputs."""
        head, contents = encode_call(call)
        path = f"/models/{quote(call.model, '')}/infer"
        answer, length = self._exchange("POST", path, call.timeout_s, head, *contents)
        return decode_response(call, answer, length)

    def register(self, region: Region, timeout_s: float) -> None:
        """Let the server map a region."""
        wanted = {"key": region.key, "offset": 0, "byte_size": region.byte_size}
        path = f"/systemsharedmemory/region/{region.name}/register"
        headers = admin_key.headers(self._address.url)
        self._exchange("POST", path, timeout_s, json.dumps(wanted).encode(), headers=headers)

    def unregister(self, name: str, timeout_s: float) -> None:
        """Let the server unmap a region."""
        # also when closed
        path = f"/systemsharedmemory/region/{name}/unregister"
        self._send("POST", path, timeout_s, b"", headers=admin_key.headers(self._address.url))

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def close(self) -> None:
        """Refuse further calls; one that still runs ends, and gives back its region."""
        self._closed = True

    def _exchange(
        self,
        method: str,
        path: str,
        timeout_s: float | None,
        *parts: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[bytes, int | None]:
        """Send one request, unless the client is closed."""
        if self._closed:
            raise ServerUnavailable("the client is closed")
        return self._send(method, path, timeout_s, *parts, headers=headers)

    def _send(
        self,
        method: str,
        path: str,
        timeout_s: float | None,
        *parts: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[bytes, int | None]:
        """Send one request; return the response's body and the length of its JSON head."""
        headers = {**headers, **self._address.headers, "Connection": "close"}
        if parts:
            headers["Content-Length"] = str(sum(map(len, parts)))
        if len(parts) > 1:
            headers[HEAD_LENGTH] = str(len(parts[0]))
        with self._connection(timeout_s) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused early: it says why
                connection.request(
                    method, self._path + path, iter(parts) if parts else None, headers
                )
            response = connection.getresponse()
            body = response.read()
        if response.status != 200:
            raise error_for(str(response.status), _error_text(body))
        length = response.getheader(HEAD_LENGTH)
        return body, None if length is None else int(length)

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
            raise _lost(error, self._address.url) from None
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
        raise ServerUnavailable(f"no server answers at {url}: {error.strerror or error}") from None


def _lost(error: Exception, url: str) -> ServerUnavailable:
    """Word a connection that broke, or an answer that is no HTTP."""
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return ServerUnavailable(
            f"no HTTP server answers at {url}: the port seems to speak gRPC. "
            f"Use {other_protocol('http')}."
        )
    reason = printable(str(error)) or type(error).__name__
    return ServerUnavailable(f"lost the connection to {url}: {reason}")


def _error_text(body: bytes) -> str:
    """Return the text of an error response; of one that is not Triton's, its body."""
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
