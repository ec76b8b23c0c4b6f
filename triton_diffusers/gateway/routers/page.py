# SPDX-License-Identifier: Apache-2.0
"""The page to try a model on, at `/`: the plain files of static/, which need no build.

Its files stand under a path with a digest of them all: a browser keeps them for ever, and never
mixes those of two versions. They are read once; no path of a request is looked up on the disk.
"""

import hashlib
import mimetypes
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from triton_diffusers.gateway.errors import ApiError

router = APIRouter(include_in_schema=False)

INDEX = "index.html"
ASSETS = "page/ASSETS/"
"""What index.html calls the folder of its files."""

SECURITY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from another host, nothing inline, no frame around it, no HTML from texts."""

HEADERS = {
    "Content-Security-Policy": SECURITY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
REVALIDATE = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"


@router.get("/")
@router.head("/")
async def index(request: Request) -> Response:
    """Return the page."""
    tag = f'"{_digest()}"'
    headers = HEADERS | {"Cache-Control": REVALIDATE, "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    page = _contents()[INDEX].replace(ASSETS.encode(), f"page/{_digest()}/".encode())
    return Response(page, media_type="text/html", headers=headers)


@router.get("/page/{digest}/{name}")
@router.head("/page/{digest}/{name}")
async def asset(digest: str, name: str) -> Response:
    """Return one of the page's files. Another version's digest gets this version's file."""
    content = _contents().get(name)
    if content is None or name == INDEX:
        raise ApiError(404, f"the page has no file '{name}'")
    kept = FOR_EVER if digest == _digest() else REVALIDATE
    headers = HEADERS | {"Cache-Control": kept}
    return Response(content, media_type=mimetypes.guess_type(name)[0], headers=headers)


@router.get("/favicon.ico")
async def favicon() -> Response:
    """Return the icon to browsers that ask for it by this name."""
    return await asset(_digest(), "icon.svg")


@cache
def _contents() -> dict[str, bytes]:
    """Return the page's files by name."""
    folder = files("triton_diffusers.gateway") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@cache
def _digest() -> str:
    hashed = hashlib.sha256()
    for name, content in sorted(_contents().items()):
        hashed.update(name.encode() + b"\0" + content)
    return hashed.hexdigest()[:16]
