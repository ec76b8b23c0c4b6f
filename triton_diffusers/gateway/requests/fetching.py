# SPDX-License-Identifier: Apache-2.0
"""Pictures from other hosts: only those that the operator allows, and never a private address.

The address is checked after the name was resolved, and the connection goes to that address. No
redirect is followed, no proxy used, nothing unpacked.
"""

import asyncio
import io
import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from PIL import Image

from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.media.decode import PICTURE_FORMATS

TIMEOUT_S = 20.0
CHUNK_BYTES = 2**16

CARRIERS = tuple(
    ipaddress.ip_network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")
)
"""IPv6 networks whose addresses stand for IPv4 ones, private ones too."""

IsPublic = Callable[[str], bool]


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the open internet."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        if parsed.is_site_local or any(parsed in network for network in CARRIERS):
            return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


async def fetch_image(
    settings: Settings, name: str, url: str, is_allowed: IsPublic = is_public
) -> bytes:
    """Return the file at `url`, at most settings.max_upload_bytes of it.

    Raises ApiError: 400 for a host that is not allowed, a private address, an answer that is no
    picture or does not come; 413 for a file that is too large.
    """
    parts = _check_url(settings, name, url)
    try:
        content = await asyncio.wait_for(_get(settings, name, url, is_allowed), TIMEOUT_S)
    except (asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        is_late = isinstance(error, asyncio.TimeoutError)
        reason = f"no answer in {TIMEOUT_S:g} s" if is_late else str(error)
        raise invalid(f"{name}: {parts.hostname} cannot be read: {reason}", name) from None
    _check_picture(name, content)
    return content


def _check_url(settings: Settings, name: str, url: str) -> SplitResult:
    """Refuse a URL that the operator has not allowed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise invalid(f"{name}: no valid URL ({error})", name) from None
    if not settings.fetch_hosts:
        raise invalid(
            f"{name}: this gateway fetches nothing from other hosts; send the file itself as a "
            "data: URL (data:image/png;base64,...) or base64",
            name,
        )
    host = (parts.hostname or "").lower().rstrip(".")
    accepted = {allowed.lower() for allowed in settings.fetch_hosts}
    listed = host if port is None or port == {"http": 80, "https": 443}[parts.scheme] else ""
    if not {listed, f"{host}:{port}"} & accepted or parts.username or parts.password:
        raise invalid(
            f"{name}: '{parts.netloc.rpartition('@')[2]}' is not a host to fetch from. "
            f"Allowed: {', '.join(sorted(accepted))}; or send a data: URL",
            name,
        )
    return parts


async def _get(settings: Settings, name: str, url: str, is_allowed: IsPublic) -> bytes:
    connector = aiohttp.TCPConnector(resolver=_Resolver(is_allowed), use_dns_cache=False)
    host = urlsplit(url).hostname or ""
    if _is_address(host) and not is_allowed(host):  # which no resolver is asked for
        raise ValueError(_private(host))
    async with (
        aiohttp.ClientSession(
            connector=connector, trust_env=False, auto_decompress=False, cookie_jar=_no_cookies()
        ) as session,
        session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer,
    ):
        if answer.status != 200:
            raise ValueError(f"status {answer.status} instead of 200; redirects are not followed")
        return await _read(settings, name, answer)


async def _read(settings: Settings, name: str, answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
        content += chunk
        if len(content) > settings.max_upload_bytes:
            raise ApiError(
                413,
                f"{name}: the file is larger than {settings.max_upload_bytes} bytes "
                "(max_upload_bytes of the gateway); send a smaller one",
                param=name,
                code="file_too_large",
            )
    return bytes(content)


def _check_picture(name: str, content: bytes) -> None:
    """Refuse what is no picture by its header, so that no other content is passed on."""
    try:
        Image.open(io.BytesIO(content), formats=PICTURE_FORMATS)
    except Exception:  # Pillow's readers raise whatever a broken file leads them to
        raise invalid(f"{name}: what the URL returns is no picture", name) from None


class _Resolver(AbstractResolver):
    """The system's resolver, refusing names that lead to addresses which are not allowed."""

    def __init__(self, is_allowed: IsPublic):
        self._inner = ThreadedResolver()
        self._is_allowed = is_allowed

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            if not self._is_allowed(result["host"]):
                raise ValueError(_private(host))
        return found

    async def close(self) -> None:
        await self._inner.close()


def _private(host: str) -> str:
    return f"{host} is a private, local or reserved address"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _no_cookies() -> aiohttp.DummyCookieJar:
    return aiohttp.DummyCookieJar()
