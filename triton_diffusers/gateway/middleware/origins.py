# SPDX-License-Identifier: Apache-2.0
"""Pages of other sites may not use a gateway that their visitor's browser reaches.

A browser sends requests for any page to any address, also to localhost, without asking where they
are simple; and a name that an attacker owns may resolve to 127.0.0.1. Programs send neither
`Origin` nor `Sec-Fetch-Site`, so nothing changes for them.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triton_diffusers.gateway.errors import ApiError, respond
from triton_diffusers.gateway.middleware.auth import is_open

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
DEFAULT_PORTS = {"http": 80, "https": 443}


class Origins:
    """ASGI middleware: 403 for requests that another site's page makes, or for a foreign Host.

    hosts: the names under which the gateway may be called; None: any.
    origins: those of `cors_origins`, whose pages may call.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str]):
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refuse_host(scope) or self._refuse_site(scope)
            if refusal is not None:
                await respond(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse_host(self, scope: Scope) -> ApiError | None:
        if self._hosts is None:
            return None
        sent = Headers(scope=scope).get("host", "")
        name = _split(f"//{sent}")[0]
        if name in self._hosts or name.endswith(".localhost"):
            return None
        return _refusal(
            f"the header Host names '{name}', which is not known here: call it as localhost, or "
            f"start the gateway with --allow-host {name or 'NAME'}",
            "host_not_allowed",
        )

    def _refuse_site(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None:
            if self._is_allowed(origin) or _is_own(origin, headers):
                return None
            return _refusal(
                f"pages of {origin} may not call this gateway; allow them with --cors-origins",
                "origin_not_allowed",
            )
        foreign = headers.get("sec-fetch-site") == "cross-site"
        # a link to the page from elsewhere: nothing but the page is opened
        linked = scope["method"] in ("GET", "HEAD") and is_open(scope["path"])
        if foreign and not (linked and headers.get("sec-fetch-mode") == "navigate"):
            return _refusal("pages of other sites may not call this gateway", "origin_not_allowed")
        return None

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins


def _is_own(origin: str, headers: Headers) -> bool:
    """Tell whether an origin is the gateway's own, as the browser or a proxy in front names it.

    `X-Forwarded-Host` is a proxy's: a page of another site cannot set it without being allowed.
    """
    default = DEFAULT_PORTS.get(origin.partition(":")[0].lower())
    own = {_split(f"//{headers[name]}", default) for name in _HOST_HEADERS if name in headers}
    return origin.startswith(("http://", "https://")) and _split(origin, default) in own


_HOST_HEADERS = ("host", "x-forwarded-host")


def _split(url: str, default: int | None = None) -> tuple[str, int | None]:
    """Return host and port; a text that is none has an empty host."""
    try:
        read = urlsplit(url)
        return (read.hostname or "").lower(), read.port or default
    except ValueError:
        return "", None


def _refusal(message: str, code: str) -> ApiError:
    return ApiError(403, message, code=code, headers={"Connection": "close"})
