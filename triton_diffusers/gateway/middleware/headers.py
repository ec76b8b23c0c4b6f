# SPDX-License-Identifier: Apache-2.0
"""Headers of every answer that tell browsers to be strict."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STRICT = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""An answer that has one of them already keeps its own."""


class StrictHeaders:
    """ASGI middleware that adds STRICT."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on; add the headers to what comes back."""

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in STRICT.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, strict)
