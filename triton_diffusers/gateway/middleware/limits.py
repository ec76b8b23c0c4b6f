# SPDX-License-Identifier: Apache-2.0
"""How much the gateway takes at once: requests, bytes of one body, bytes of all bodies."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_diffusers.gateway.errors import ApiError, busy, respond
from triton_diffusers.gateway.middleware.auth import is_open
from triton_diffusers.gateway.settings import MIB, Settings

BODY_PAUSE_S = 30.0
"""How long a caller may pause while it sends a body."""
CLOSE = {"Connection": "close"}
"""The rest of a body that is refused is not read, so its connection is of no more use."""


class Limits:
    """ASGI middleware that answers 413, 429 and 408. The page and probes are never refused."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.settings = settings
        self.running = 0
        self.held_bytes = 0
        """Of the bodies of all requests that run."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on and count."""
        if scope["type"] != "http" or is_open(scope["path"]) or scope["path"] == "/metrics":
            await self._app(scope, receive, send)
            return
        body = Body(self, receive)
        refusal = self._refuse_number() or body.refuse_declared(Headers(scope=scope))
        if refusal is not None:
            refusal.headers |= CLOSE
            await respond(refusal, scope, receive, send)
            return
        self.running += 1
        try:
            await self._app(scope, body.receive, send)
        finally:
            self.running -= 1
            self.held_bytes -= body.held_bytes

    def _refuse_number(self) -> ApiError | None:
        limit = self.settings.max_requests
        if self.running < limit:
            return None
        return busy(f"{limit} requests are running, which is the limit; send it again later", 429)

    def refuse_bytes(self, of_one: int, more: int) -> ApiError | None:
        """Refuse a body of so many bytes, `more` of which are not held yet."""
        limit = self.settings.max_body_bytes
        if of_one > limit:
            return ApiError(
                413,
                f"the body has more than {limit} bytes ({limit / MIB:.1f} MiB), which is the limit "
                "of this gateway (max_body_bytes)",
                code="body_too_large",
            )
        if self.held_bytes + more > self.settings.max_body_bytes_in_all:
            return busy("the requests that are running hold too many bytes; send it later", 429)
        return None


class Body:
    """The body of a request while it comes in."""

    def __init__(self, limits: Limits, receive: Receive):
        self.held_bytes = 0
        self._limits = limits
        self._receive = receive
        self._read = 0
        self._complete = False

    def refuse_declared(self, headers: Headers) -> ApiError | None:
        """Look at Content-Length; what it declares is held from now on."""
        text = headers.get("content-length", "")
        # the HTTP server has refused what is no number
        declared = int(text) if text.isdecimal() and len(text) < 20 else 0
        refusal = self._limits.refuse_bytes(declared, declared)
        if refusal is None:
            self._hold(declared)
        return refusal

    async def receive(self) -> Message:
        """Return the next message of ASGI. Raises HTTPException 408, 413 or 429."""
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_PAUSE_S)
        except asyncio.TimeoutError:
            text = f"the rest of the body did not come within {BODY_PAUSE_S:.0f} s"
            raise HTTPException(408, text, CLOSE) from None
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            self._count(len(message.get("body", b"")))
        return message

    def _count(self, size: int) -> None:
        self._read += size
        more = max(0, self._read - self.held_bytes)
        refusal = self._limits.refuse_bytes(self._read, more)
        if refusal is not None:
            # FastAPI hands on no other exception than this while it reads a body
            raise HTTPException(refusal.status, refusal.error.message, {**refusal.headers, **CLOSE})
        self._hold(more)

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self._limits.held_bytes += size
