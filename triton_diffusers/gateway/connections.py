# SPDX-License-Identifier: Apache-2.0
"""Connections: heads of bounded size and time, readers who read, and room for newcomers.

uvicorn's parser takes heads, trailers and chunk extensions of any length, waits for a head for ever
and parses every request that is pipelined at once. `builder gateway` uses this protocol; another
uvicorn does with `--http triton_diffusers.gateway.connections:Connection`.
"""

import asyncio
import logging
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from triton_diffusers.gateway.errors import ApiError, busy, invalid
from triton_diffusers.gateway.settings import Settings

LOG = logging.getLogger(__name__)

MAX_HEADERS = 256
PIECE = 2**13
"""Bytes that are parsed before the limits are looked at again."""
MAX_WAITING = 2**20
"""Bytes of pipelined requests that may wait for an answer before theirs."""
LEAST_READ = 2**16
"""Bytes of an answer that its reader takes in write_timeout_s, if not all."""
OTHER_FILES = 512
"""Files besides connections: the library's, the database's, those to tritonservers."""


class Connections:
    """Those of one gateway. For a newcomer too many, the one that sent nothing for longest goes."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._most = room_for(settings.max_connections)
        self._awaited: dict[Connection, None] = {}
        """Those whose callers have something to send, who sent last at the end."""

    def admit(self, newcomer: "Connection", count: int) -> bool:
        """Make room for a connection that is one of `count`; False: requests run on all others."""
        if count > self._most:
            if not self._awaited:
                return False
            next(iter(self._awaited)).drop()
        self.await_caller(newcomer)
        return True

    def await_caller(self, connection: "Connection") -> None:
        """Note that a caller may send the next request, or the rest of one."""
        self._awaited[connection] = None

    def hear(self, connection: "Connection") -> None:
        """Note that a caller sends."""
        if connection in self._awaited:
            self.forget(connection)
            self.await_caller(connection)

    def forget(self, connection: "Connection") -> None:
        """Note that a request runs whose caller waits, or that a connection is closed."""
        self._awaited.pop(connection, None)


def room_for(wanted: int) -> int:
    """Return how many connections may be open, after letting the process open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    may = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (may, hard))
    if may == needed:
        return wanted
    room = max(may - OTHER_FILES, may // 2)
    LOG.warning(
        "max_connections is %d, but this process may open %d files: %d connections are held at "
        "once; raise its limit (ulimit -Hn)",
        *(wanted, may, room),
    )
    return room


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits. Its settings come with the app's lifespan."""

    def __init__(self, *args: Any, **keywords: Any):
        super().__init__(*args, **keywords)
        self._shared: Connections = self.app_state["connections"]
        self._settings = self._shared.settings
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unread, self._was_drained = 0, False
        self._waiting = b""
        self._answered: RequestResponseCycle | None = None
        self._refusal: ApiError | None = None
        self._is_in_head = True
        self._head_bytes = 0
        self._since = 0
        """Bytes since the request began, its head ended or a part of its body came."""
        self._framing = 0
        """Bytes since the request began, those of its body left out."""
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Await the first head."""
        super().connection_made(transport)
        if self._shared.admit(self, len(self.connections)):
            self._await_head()
        else:
            self._refuse(busy("as many requests are running as there may be connections"))

    def data_received(self, data: bytes) -> None:
        """Parse, piece by piece; stop waiting for a head where a request runs now."""
        data, self._waiting = self._waiting + data, b""
        if not data:
            return
        self._shared.hear(self)
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if self.transport.is_closing():
                break
            if self.pipeline:  # its turn comes when the request before it is answered
                self._wait_with(data[start:])
                break
            self._parse(view[start : start + PIECE])
        if self._is_running():
            self._stop_awaiting_head()
        elif not self.transport.is_closing():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._shared.forget(self)
        self._stop_awaiting_head()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        if self._answered is not None:  # of pipelined requests uvicorn tells the last one only
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close at once."""
        self._shared.forget(self)
        self.connections.discard(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        """See to it that the reader reads on."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Note that the reader has read."""
        super().resume_writing()
        self._was_drained = True

    def on_response_complete(self) -> None:
        """Go on with what was pipelined."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_reader()
        if self.transport.is_closing() or self._is_running():
            return
        self._shared.await_caller(self)
        if self._waiting:
            self.loop.call_soon(self.data_received, b"")

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = self._since = self._framing = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count; what comes after a body is no header of its request."""
        if self._is_in_head:
            super().on_header(name, value)
            self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """Run the request."""
        self._is_in_head, self._since = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count."""
        self._since, self._framing = 0, self._framing - len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Await the next head."""
        self._is_in_head, self._since = True, 0
        if self._is_running():
            self._shared.forget(self)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refuses, as the other errors are."""
        told = "this is no valid HTTP/1.1 request; send one, or fix what is between us"
        self._refuse(self._refusal or invalid(told))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _parse(self, piece: memoryview) -> None:
        self._since += len(piece)
        self._framing += len(piece)
        super().data_received(piece)  # type: ignore[arg-type]
        limit = self._settings.max_head_bytes
        if self.transport.is_closing():
            return
        if self._is_in_head and self._since > limit:
            self._refuse(self._too_long())
        elif self._since > limit or self._framing > limit + self._body_bytes:
            self._refuse(
                invalid(
                    "the chunks of the body are too small, or what stands between or after them "
                    f"has more than {limit} bytes; send larger chunks, no extensions or trailers"
                )
            )

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._settings.max_head_bytes or len(self.headers) > MAX_HEADERS:
            self._refusal = self._too_long()
            raise ValueError("the head is too long")  # which ends the parser

    def _too_long(self) -> ApiError:
        return ApiError(
            431,
            f"the head of the request has more than {self._settings.max_head_bytes} bytes "
            f"(max_head_bytes) or {MAX_HEADERS} headers; send fewer and shorter headers",
            code="head_too_large",
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer and close; an answer that has begun is only ended."""
        if not self._is_running() or not (self.pipeline or self.cycle.response_started):
            content = bytes(error.response.body)
            headers = error.headers | {
                "Content-Type": "application/json",
                "Content-Length": str(len(content)),
                "Connection": "close",
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[error.status] + lines.encode() + b"\r\n" + content)
        self.transport.close()

    def _wait_with(self, data: bytes) -> None:
        self._waiting = data
        self.flow.pause_reading()
        if len(data) > MAX_WAITING:
            self.transport.close()

    def _is_running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._settings.head_timeout_s, self._give_up)

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self._is_running() and not self.transport.is_closing():
            self.transport.close()

    def _watch_reader(self) -> None:
        if self._reader_timer is None:
            self._unread, self._was_drained = self.transport.get_write_buffer_size(), False
            after_s = self._settings.write_timeout_s
            self._reader_timer = self.loop.call_later(after_s, self._check_reader)

    def _check_reader(self) -> None:
        self._reader_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread and not self._was_drained and unread > self._unread - LEAST_READ:
            self.transport.abort()
        elif unread:
            self._watch_reader()
