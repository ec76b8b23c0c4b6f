# SPDX-License-Identifier: Apache-2.0
"""API keys: 401 without one, and what needs none."""

from __future__ import annotations

import hashlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.calling import PATH, TIMEOUT_S, check_error
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway.middleware.auth import Keys

PLAIN, HASHED, GIVEN = "plain-key-1", "hashed key ü", "given-key"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    digest = hashlib.sha256(HASHED.encode()).hexdigest()
    file.write_text(f"# who: what for\n{PLAIN}\n\nsha256:{digest}\n")
    return file


@pytest.fixture
def guarded(demo_server: Server, keys_file: Path) -> Iterator[str]:
    with serve_gateway(demo_server.grpc_url, api_keys=GIVEN, api_keys_file=keys_file) as url:
        yield url


def ask(url: str, authorization: str | bytes | None) -> httpx.Response:
    headers = {} if authorization is None else {b"Authorization": authorization}
    return httpx.get(f"{url}/v1/models", headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize("key", [PLAIN, HASHED, GIVEN])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_key_is_accepted(guarded: str, key: str, scheme: str) -> None:
    assert ask(guarded, f"{scheme} {key}".encode()).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        *(None, "", "Bearer", f"Basic {PLAIN}", PLAIN, f"Bearer {PLAIN}x"),
        f"Bearer {PLAIN[:-1]}",
        f"Bearer sha256:{hashlib.sha256(HASHED.encode()).hexdigest()}",
        "Bearer # who: what for",
    ],
)
def test_anything_else_is_401(guarded: str, sent: str | None) -> None:
    response = ask(guarded, sent)
    error = check_error(response, 401, "invalid_api_key")
    assert error["type"] == "authentication_error"
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "key" in error["message"]
    assert PLAIN not in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/v1/models/demo"), ("POST", PATH), ("GET", "/metrics"), ("GET", "/nope")),
        *(("GET", "/openapi.json"), ("GET", "/health/nope"), ("OPTIONS", PATH)),
        *(("GET", "//health"), ("GET", "/v1/../health"), ("GET", "/health/../v1/models")),
    ],
)
def test_every_path_but_the_open_ones_needs_a_key(guarded: str, method: str, path: str) -> None:
    # as it is written: httpx would resolve the dots
    connection = http.client.HTTPConnection(guarded.removeprefix("http://"), timeout=TIMEOUT_S)
    connection.request(method, path)
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("path", ["/", "/health", "/health/live", "/favicon.ico"])
def test_the_page_and_probes_need_none(guarded: str, path: str) -> None:
    assert httpx.get(guarded + path, timeout=TIMEOUT_S).status_code == 200


def test_without_keys_everybody_may(gateway: str) -> None:
    assert ask(gateway, None).status_code == ask(gateway, "Bearer x").status_code == 200


def test_keys_that_are_taken_away_stop_at_once(guarded: str, keys_file: Path) -> None:
    assert ask(guarded, f"Bearer {PLAIN}").status_code == 200
    keys_file.write_text("another\n")
    assert ask(guarded, f"Bearer {PLAIN}").status_code == 401
    assert ask(guarded, "Bearer another").status_code == 200
    os.remove(keys_file)
    assert ask(guarded, "Bearer another").status_code == 401
    assert ask(guarded, f"Bearer {GIVEN}").status_code == 200
    keys_file.write_text(f"{PLAIN}\n")
    assert ask(guarded, f"Bearer {PLAIN}").status_code == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "holds no keys"),
        (b"# nothing\n\n", "holds no keys"),
        (b"\xff\xfe", "no UTF-8"),
        (b"k\nsha256:12\n", "line 2: sha256: needs 64"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        Keys(file=file)


def test_no_keys_are_no_guard() -> None:
    assert not Keys()
    assert Keys(["a"])
