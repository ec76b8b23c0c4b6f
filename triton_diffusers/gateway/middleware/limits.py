# SPDX-License-Identifier: Apache-2.0
"""How much the gateway takes at once: requests, bytes of one body, bytes of all bodies.

A body is read whole before its request counts as one that runs, and its bytes count when they
come: whoever sends slowly holds up nobody. Where the bytes of all are too many, the body that has
held most of them for longest gives way.
"""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_diffusers.gateway.errors import ApiError, busy, respond
from triton_diffusers.gateway.middleware.auth import is_open
from triton_diffusers.gateway.settings import MIB, Settings

BODY_PAUSE_S = 30.0
"""How long a caller may pause while it sends a body."""
SMALL_BODY = MIB
KEPT_FOR_SMALL = 8
"""One part in so many of the bytes of all bodies is kept for those that are small."""
CLOSE = {"Connection": "close"}
"""The rest of a body that is refused is not read, so its connection is of no more use."""


class Limits:
    """ASGI middleware that answers 413, 429 and 408. The page and probes are never refused."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.settings = settings
        self.running = 0
        self.held_bytes = 0
        """Of bodies that are coming and of those of requests that run."""
        self.coming: set[CountedBody] = set()
        """Bodies that are not whole."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on and count."""
        if scope["type"] != "http" or is_open(scope["path"]) or scope["path"] == "/metrics":
            await self._app(scope, receive, send)
            return
        body = CountedBody(self, receive)
        try:
            refusal = (
                self._refuse_number()
                or self._refuse_declared(Headers(scope=scope))
                or await body.read()
                or self._refuse_number()
            )
            if refusal is not None:
                refusal.headers |= CLOSE
                await respond(refusal, scope, receive, send)
            elif not body.is_cut:
                self.running += 1
                try:
                    await self._app(scope, body.replay, send)
                finally:
                    self.running -= 1
        finally:
            body.release()

    def _refuse_number(self) -> ApiError | None:
        limit = self.settings.max_requests
        if self.running < limit:
            return None
        return busy(f"{limit} requests are running, which is the limit; send it again later", 429)

    def _refuse_declared(self, headers: Headers) -> ApiError | None:
        text = headers.get("content-length", "")
        # the HTTP server has refused what is no number
        return self._refuse_size(int(text) if text.isdecimal() and len(text) < 20 else 0)

    def _refuse_size(self, size: int) -> ApiError | None:
        limit = self.settings.max_body_bytes
        if size <= limit:
            return None
        return ApiError(
            413,
            f"the body has more than {limit} bytes ({limit / MIB:.1f} MiB), which is the limit "
            "of this gateway (max_body_bytes)",
            code="body_too_large",
        )

    def refuse_more(self, body: "CountedBody", more: int) -> ApiError | None:
        """Refuse a body `more` bytes of which have come, or make room for them."""
        size = body.held_bytes + more
        refusal = self._refuse_size(size)
        if refusal is not None:
            return refusal
        most = self.settings.max_body_bytes_in_all
        if size > SMALL_BODY:
            most = max(most - most // KEPT_FOR_SMALL, self.settings.max_body_bytes)
        while self.held_bytes + more > most:
            others = (other for other in self.coming - {body} if other.held_bytes)
            worst = max(others, key=CountedBody.burden, default=body)
            if worst.burden() <= body.burden(more):
                return _too_many()
            worst.give_way()
        return None


def _too_many() -> ApiError:
    told = "the bodies that are coming and running hold too many bytes; send it again later"
    return busy(told, 429)


class CountedBody:
    """The body of a request."""

    def __init__(self, limits: Limits, receive: Receive):
        self.held_bytes = 0
        self.is_cut = False
        """Its caller went away."""
        self._limits = limits
        self._receive = receive
        self._began = time.monotonic()
        self._content = bytearray()
        self._is_replayed = False
        self._next: asyncio.Future[Message] | None = None
        self._refusal: ApiError | None = None

    async def read(self) -> ApiError | None:
        """Read all of it. Returns why it is refused, with 408, 413 or 429."""
        self._limits.coming.add(self)
        deadline = self._began + self._limits.settings.body_timeout_s
        try:
            while True:
                left = deadline - time.monotonic()
                self._next = asyncio.ensure_future(self._receive())
                await asyncio.wait((self._next,), timeout=max(0.0, min(left, BODY_PAUSE_S)))
                if self._refusal is not None:
                    return self._refusal
                if not self._next.done():
                    return _too_slow(min(left, BODY_PAUSE_S) < left, self._limits.settings)
                message = self._next.result()
                if message["type"] != "http.request":
                    self.is_cut = True
                    return None
                refusal = self._add(message.get("body", b""))
                if refusal is not None or not message.get("more_body", False):
                    return refusal
        finally:
            self._limits.coming.discard(self)
            if self._next is not None:
                self._next.cancel()

    def _add(self, part: bytes) -> ApiError | None:
        refusal = self._limits.refuse_more(self, len(part))
        if refusal is None:
            self.held_bytes += len(part)
            self._limits.held_bytes += len(part)
            self._content += part
        return refusal

    def burden(self, more: int = 0) -> float:
        """Return how many bytes it holds, times the seconds that it has been coming."""
        return (self.held_bytes + more) * (time.monotonic() - self._began)

    def give_way(self) -> None:
        """Drop what has come; its caller is told to send it again."""
        self._limits.coming.discard(self)
        self.release()
        self._refusal = _too_many()
        if self._next is not None:
            self._next.cancel()

    def release(self) -> None:
        """Hold no bytes any more."""
        self._limits.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self._content = bytearray()

    async def replay(self) -> Message:
        """Return the whole body as one message of ASGI, then what comes after it."""
        if self._is_replayed:
            return await self._receive()
        self._is_replayed = True
        content, self._content = bytes(self._content), bytearray()
        return {"type": "http.request", "body": content, "more_body": False}


def _too_slow(is_pause: bool, settings: Settings) -> ApiError:
    if is_pause:
        told = f"the rest of the body did not come within {BODY_PAUSE_S:.0f} s; send it at once"
    else:
        told = (
            f"the body did not come within {settings.body_timeout_s:g} s (body_timeout_s); send it "
            "faster, or a smaller one"
        )
    return ApiError(408, told, code="body_too_slow")
