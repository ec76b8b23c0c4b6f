# SPDX-License-Identifier: Apache-2.0
"""Picture files that are none, broken, truncated, too large or bombs."""

from __future__ import annotations

import base64
from collections.abc import Callable

from tests.server import broken_files as files
from tests.server.broken_files import image_file, truncated
from tests.server.cases.case import Case

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


def _case(name: str, content: object, *words: str) -> Case:
    inputs = {"prompt": "a fox", "image_bytes": content}
    return Case(f"file-{name}", "edits", inputs, ("image_bytes", *words))


def _in_base64(make: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: base64.b64encode(make())


def _png() -> bytes:
    return image_file("png")


CASES = (
    *(
        _case(f"{f}-truncated", lambda f=f: truncated(image_file(f)), "broken")
        for f in ("png", "jpeg", "webp", "gif", "bmp", "tiff")
    ),
    *(
        _case(f"{f}-head-only", lambda f=f: image_file(f)[:24], "send")
        for f in ("png", "jpeg", "webp")
    ),
    *(
        _case(f"{f}-scrambled", lambda f=f: files.scrambled(image_file(f)), "send")
        for f in ("png", "jpeg", "webp")
    ),
    _case("jpeg-filled-with-grey", lambda: files.short_jpeg(image_file("jpeg")), "ends early"),
    _case("jpeg-bomb", files.jpeg_bomb, "cannot hold its 1000 x 1000 pixels"),
    _case("png-filled-with-black", lambda: files.png_of_rows(9), "ends early"),
    _case("png-bomb", files.png_bomb, "max_input_pixels", "smaller"),
    _case("png-bomb-in-base64", _in_base64(files.png_bomb), "max_input_pixels"),
    _case("png-just-too-large", lambda: files.png_bomb(1025, 1024), "max_input_pixels"),
    _case("png-text-bomb", files.png_text_bomb, "broken"),
    _case("gif-bomb", files.gif_bomb, "max_input_pixels"),
    _case("zero-wide-png", lambda: files.png_bomb(0, 5), "send"),
    _case("too-many-bytes", bytes(100_000), "65536", "max_input_bytes", "smaller"),
    _case("too-many-bytes-in-base64", _in_base64(lambda: bytes(80_000)), "max_input_bytes"),
    _case("empty", b"", "empty"),
    _case("zeros", bytes(500), "PNG, JPEG"),
    _case("path", "/etc/passwd", "base64"),
    _case("file-url", "file:///etc/passwd", "base64"),
    _case("http-url", "http://127.0.0.1:1/cat.png", "base64"),
    _case("words", "a picture of a fox", "base64"),
    _case("bad-base64", "iVBORw0KGgo", "base64"),
    _case("base64-of-words", _in_base64(lambda: b"a picture of a fox"), "no image"),
    _case("data-url-without-comma", "data:image/png;base64", "data:"),
    _case("data-url-without-base64", "data:image/png,iVBORw0KGgo=", "data:", "base64"),
    _case("data-url-empty", "data:image/png;base64,", "empty"),
    _case("data-url-broken", "data:image/png;base64,@@@@", "base64"),
    _case("svg", SVG, "PNG, JPEG"),
    _case("pdf", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(50), "PNG, JPEG"),
    _case("eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PNG, JPEG"),
    _case("mp4", lambda: files.video_file(2), "PNG, JPEG"),
    _case("wav", lambda: files.sound_file("wav"), "PNG, JPEG"),
    _case("second-of-two", lambda: [_png(), truncated(_png())], "broken"),
)
