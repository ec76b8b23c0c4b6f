# SPDX-License-Identifier: Apache-2.0
"""Pictures from other hosts: what is refused, and what a real HTTP server on this machine sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.pictures import error_in, file_of
from tests.server.gateway.serving import serve_gateway
from tests.server.gateway.test_edits import post
from tests.tiny.media import draw_picture
from triton_diffusers.gateway import Settings
from triton_diffusers.gateway.errors import ApiError
from triton_diffusers.gateway.requests.fetching import fetch_image, is_public

FILE = file_of(draw_picture(1, 48))
LIMIT = len(FILE) + 1000


class Answers(BaseHTTPRequestHandler):
    """A host with a picture, and what may be there instead."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, body = {
            "/picture": (200, {}, FILE),
            "/moved": (302, {"Location": "/picture"}, b""),
            "/page": (200, {"Content-Type": "image/png"}, b"<html>secret</html>"),
            "/large": (200, {}, FILE + bytes(2000)),
            "/none": (404, {}, FILE),
        }[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Answers.asked.clear()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def fetch(url: str, *hosts: str, **kwargs: Any) -> bytes:
    settings = Settings(fetch_hosts=hosts, max_upload_bytes=LIMIT)
    return asyncio.run(fetch_image(settings, "image", url, **kwargs))


def everywhere(address: str) -> bool:
    """Let the tests' own host pass for a public one."""
    return True


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        "fec0::1",
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "nonsense"),
        *("::127.0.0.1", "2001::1"),
    ],
)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_others_are(address: str) -> None:
    assert is_public(address)


def test_an_allowed_host_is_read(port: int) -> None:
    url = f"http://localhost:{port}/picture"
    assert fetch(url, f"localhost:{port}", is_allowed=everywhere) == FILE
    assert fetch(url.replace("http", "HTTP"), f"LOCALHOST:{port}", is_allowed=everywhere) == FILE


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "127.1", "0x7f.1"])
def test_no_private_address_is_asked_whatever_its_name(port: int, host: str) -> None:
    with pytest.raises(ApiError, match=r"private, local or reserved|not a canonical") as refused:
        fetch(f"http://{host}:{port}/picture", f"{host}:{port}")
    assert refused.value.status == 400
    assert Answers.asked == []


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/moved", 400, "redirects are not followed"),
        ("/none", 400, "status 404"),
        ("/page", 400, "no picture"),
        ("/large", 413, f"larger than {LIMIT} bytes"),
    ],
)
def test_what_the_host_sends_is_checked(port: int, path: str, status: int, text: str) -> None:
    with pytest.raises(ApiError, match=text) as refused:
        fetch(f"http://localhost:{port}{path}", f"localhost:{port}", is_allowed=everywhere)
    assert refused.value.status == status
    assert "secret" not in str(refused.value)
    assert Answers.asked == [path]


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:{port}/picture",
        "http://images.example@localhost:{port}/picture",
        "http://images.example:secret@images.example/picture",
        "http://images.example:8080/picture",
        "http://images.example.evil.test/picture",
        "https://evil.test/images.example",
        "http://[::1]:{port}/picture",
        "http://images.example:99999/",
        "http://[/",
    ],
)
def test_other_hosts_are_not_asked(port: int, url: str) -> None:
    with pytest.raises(ApiError) as refused:
        fetch(url.format(port=port), "images.example", is_allowed=everywhere)
    assert refused.value.status == 400
    assert "secret" not in str(refused.value)
    assert Answers.asked == []


def test_nothing_is_fetched_by_default(gateway: str, port: int) -> None:
    error = error_in(post(gateway, image=f"http://localhost:{port}/picture", prompt="x"))
    assert Answers.asked == []
    assert error["param"] == "image"


def test_the_gateway_refuses_through_its_endpoints(demo_server: Server, port: int) -> None:
    host = f"localhost:{port}"
    with serve_gateway(demo_server.grpc_url, fetch_hosts=(host,)) as url:
        assert "no input" in error_in(post(url, image=f"http://{host}/picture"))["message"]
    assert Answers.asked == []
