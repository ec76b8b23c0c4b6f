# SPDX-License-Identifier: Apache-2.0
"""Pages of other sites, and foreign names for this machine, are refused; programs are not."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.calling import TIMEOUT_S, check_error
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.config import admin_key
from triton_diffusers.contract import ADMIN_HEADER
from triton_diffusers.errors import ConfigError

EVIL = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
FORM = "application/x-www-form-urlencoded"
CALLS = [
    ("POST", "/v1/images/generations", "text/plain"),
    ("POST", "/v1/images/generations", "application/json"),
    ("POST", "/v1/chat/completions", "text/plain"),
    ("POST", "/v1/videos", FORM),
    ("GET", "/v1/videos", None),
    ("DELETE", "/v1/videos/video_1", None),
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("GET", "/", None),
    ("OPTIONS", "/v1/videos", None),
]


@pytest.fixture(scope="module")
def local(demo_server: Server) -> Iterator[str]:
    with serve_gateway(demo_server.grpc_url, only_local=True, allow_host="studio.example") as url:
        yield url


def ask(url: str, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    body = json.dumps({"model": "demo", "prompt": "x"}) if method == "POST" else None
    return httpx.request(method, url + path, headers=headers, content=body, timeout=TIMEOUT_S)


@pytest.mark.parametrize(("method", "path", "kind"), CALLS)
@pytest.mark.parametrize("sent", [EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page(
    local: str, method: str, path: str, kind: str | None, sent: dict[str, str]
) -> None:
    headers = sent if kind is None else {**sent, "Content-Type": kind}
    check_error(ask(local, method, path, headers), 403, "origin_not_allowed")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8080", "localhost.x", ""])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/health/live"])
def test_a_foreign_host(local: str, host: str, path: str) -> None:
    error = check_error(ask(local, "GET", path, {"Host": host}), 403, "host_not_allowed")
    assert "--allow-host" in error["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]:80", "a.localhost", "STUDIO.example"]
)
def test_a_known_host(local: str, host: str) -> None:
    assert ask(local, "GET", "/v1/models", {"Host": host}).status_code == 200


def test_the_gateways_own_page_programs_and_links(local: str) -> None:
    own = urlsplit(local).netloc
    assert ask(local, "GET", "/v1/models", {}).status_code == 200
    same = {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
    assert ask(local, "GET", "/v1/models", same).status_code == 200
    behind = {"Origin": "https://studio.example", "Host": "studio.example"}
    assert ask(local, "GET", "/v1/models", behind).status_code == 200
    proxied = {"Origin": "https://studio.example", "X-Forwarded-Host": "studio.example"}
    assert ask(local, "GET", "/v1/models", proxied).status_code == 200
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(local, "GET", "/", linked).status_code == 200
    check_error(ask(local, "GET", "/v1/models", linked), 403, "origin_not_allowed")
    check_error(ask(local, "POST", "/", linked), 403, "origin_not_allowed")


def test_any_name_where_it_is_not_only_local(demo_server: Server) -> None:
    with serve_gateway(demo_server.grpc_url) as url:
        assert ask(url, "GET", "/v1/models", {"Host": "gateway.svc"}).status_code == 200
        check_error(ask(url, "GET", "/v1/models", EVIL), 403, "origin_not_allowed")


@pytest.mark.parametrize("given", ["right", "wrong", "none"])
def test_models_are_found_with_and_without_the_servers_key(
    demo_server: Server, given: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{ADMIN_HEADER}: {demo_server.admin_key if given == 'right' else 'x' * 43}")
    ports = (demo_server.ports.http, demo_server.ports.grpc)
    settings = {} if given == "none" else {"triton_admin_key_file": file}
    admin_key.remove_local(demo_server.admin_key, *ports)
    try:
        with serve_gateway(demo_server.grpc_url, **settings) as url:
            listed = ask(url, "GET", "/v1/models", {}).json()["data"]
    finally:
        admin_key.leave_local(demo_server.admin_key, *ports)
    assert [model["id"] for model in listed] == ["demo"]
    assert ("does not accept the key" in caplog.text) == (given == "wrong")


def test_a_key_file_without_a_key_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    with (
        pytest.raises(ConfigError, match="holds no key"),
        serve_gateway("localhost:1", triton_admin_key_file=tmp_path / "key"),
    ):
        pass


def test_its_files_are_its_users_alone(demo_server: Server, tmp_path: Path) -> None:
    places = {"database": f"sqlite:///{tmp_path}/state/jobs.db", "files": str(tmp_path / "files")}
    with serve_gateway(demo_server.grpc_url, **places) as url:
        assert ask(url, "GET", "/v1/videos", {}).status_code == 200
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes.pop("state") == modes.pop("files") == 0o700
    assert {"jobs.db", "jobs.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}
