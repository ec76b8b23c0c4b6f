# SPDX-License-Identifier: Apache-2.0
"""503 for requests cut off at shutdown."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_diffusers.gateway.errors import busy, respond


class Stopping:
    """ASGI middleware that answers 503 where the HTTP server cancels what still runs at its end."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on; answer a request that is cancelled before its answer began."""
        began = False

        async def watch(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:
            if began or scope["type"] != "http":
                raise
            error = busy("the gateway is being stopped; send it to another one, or later")
            await respond(error, scope, receive, send)
