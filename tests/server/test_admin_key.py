# SPDX-License-Identifier: Apache-2.0
"""Administrative calls need the key, over HTTP and gRPC; nothing that callers need does."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from builder.tritonserver.server import Server
from tests.server.builder_serve import Serving, repository, serve  # noqa: F401 - fixtures
from tests.server.wire import PROTOCOLS, admin
from triton_diffusers.client import DiffusersClient, ServerUnavailable
from triton_diffusers.config import admin_key

REGION = {"key": "/nothing", "offset": 0, "byte_size": 8}
HTTP_CALLS = {
    "repository/index": {},
    "repository/models/demo/load": {},
    "repository/models/demo/unload": {},
    "systemsharedmemory/region/x/register": REGION,
    "systemsharedmemory/unregister": {},
    "systemsharedmemory/status": None,
    "cudasharedmemory/region/x/register": REGION,
    "cudasharedmemory/status": None,
    "logging": {"log_file": "/tmp/x"},
    "trace/setting": {"trace_file": "/tmp/x"},
    "models/demo/trace/setting": {"trace_file": "/tmp/x"},
}
GRPC_CALLS = {
    "RepositoryIndex": pb.RepositoryIndexRequest(),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="demo"),
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="demo"),
    "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterRequest(name="x", key="/x"),
    "SystemSharedMemoryUnregister": pb.SystemSharedMemoryUnregisterRequest(),
    "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusRequest(),
    "CudaSharedMemoryRegister": pb.CudaSharedMemoryRegisterRequest(name="x"),
    "CudaSharedMemoryUnregister": pb.CudaSharedMemoryUnregisterRequest(),
    "CudaSharedMemoryStatus": pb.CudaSharedMemoryStatusRequest(),
    "LogSettings": pb.LogSettingsRequest(),
    "TraceSetting": pb.TraceSettingRequest(model_name="demo"),
}
EVIL_MODEL = """
open({mark!r}, "w").close()
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
EVIL_CONFIG = {
    "backend": "python",
    "max_batch_size": 0,
    "input": [{"name": "a", "data_type": "TYPE_INT64", "dims": [1]}],
    "output": [{"name": "b", "data_type": "TYPE_INT64", "dims": [1]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}
CALL = {"prompt": "a handwritten seven", "num_inference_steps": 1, "seed": 7}


def post(server: Server, path: str, body: object, headers: dict[str, str]) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def service(server: Server) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_url))


@pytest.mark.parametrize("path", HTTP_CALLS)
def test_http_refuses_without_the_key(demo_server: Server, path: str) -> None:
    for headers in ({}, {"triton-diffusers-admin-key": "x" * 43}):
        status, text = post(demo_server, path, HTTP_CALLS[path], headers)
        assert status == 403
        assert "restricted" in text


@pytest.mark.parametrize("name", GRPC_CALLS)
def test_grpc_refuses_without_the_key(demo_server: Server, name: str) -> None:
    with pytest.raises(grpc.RpcError, match="restricted"):
        getattr(service(demo_server), name)(GRPC_CALLS[name], timeout=60)


def test_no_page_makes_the_server_run_its_code(demo_server: Server, tmp_path: Path) -> None:
    """What fetch() with mode no-cors sends from any page."""
    mark = tmp_path / "mark"
    code = base64.b64encode(EVIL_MODEL.format(mark=str(mark)).encode()).decode()
    config = json.dumps({"name": "evil", **EVIL_CONFIG})
    body = {"parameters": {"config": config, "file:1/model.py": code}}
    headers = {"Content-Type": "text/plain", "Origin": "https://evil.example"}
    path = "repository/models/evil/load"
    assert post(demo_server, path, body, headers)[0] == 403
    assert not mark.exists()
    # the same call does run it for whoever has the key: the test can fail
    assert post(demo_server, path, body, admin(demo_server, "http"))[0] == 200
    assert mark.exists()
    demo_server.unload("evil")


def test_with_the_key_they_work(demo_server: Server) -> None:
    status, text = post(demo_server, "repository/index", {}, admin(demo_server, "http"))
    assert (status, json.loads(text)[0]["state"]) == (200, "READY")
    metadata = list(admin(demo_server, "grpc").items())
    index = service(demo_server).RepositoryIndex(
        pb.RepositoryIndexRequest(), metadata=metadata, timeout=60
    )
    assert "demo" in [model.name for model in index.models]


def test_the_key_is_for_its_own_user_and_in_no_list_of_processes(demo_server: Server) -> None:
    for port in (demo_server.ports.http, demo_server.ports.grpc):
        file = admin_key.SHARED_MEMORY_DIR / f"triton-admin-key-{port}"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert admin_key.read_local(f"localhost:{port}") == demo_server.admin_key
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                text = (process / name).read_bytes()
            except OSError:
                continue
            assert demo_server.admin_key.encode() not in text, process


@pytest.fixture
def without_key(demo_server: Server) -> Iterator[None]:
    """As a program of another user, or in another container, sees the server."""
    ports = (demo_server.ports.http, demo_server.ports.grpc)
    admin_key.remove_local(demo_server.admin_key, *ports)
    yield
    admin_key.leave_local(demo_server.admin_key, *ports)


def ask(server: Server, protocol: str, calls: int = 1, **options: object) -> list[np.ndarray]:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with DiffusersClient(url, model="demo", protocol=protocol) as client:
        results = [client.generate(**CALL, **options) for _ in range(calls)]
    return [result.arrays["images"] for result in results]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_helper_uses_shared_memory_with_the_key(demo_server: Server, protocol: str) -> None:
    options = {"shared_memory": True, "shared_memory_bytes": 8 << 20}
    (image,) = ask(demo_server, protocol, **options)
    (expected,) = ask(demo_server, protocol, shared_memory=False)
    assert np.array_equal(image, expected)


@pytest.mark.usefixtures("without_key")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_helper_does_without_and_says_it_once(
    demo_server: Server, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "triton_diffusers"):
        images = ask(demo_server, protocol, calls=2, shared_memory_bytes=8 << 20)
    assert np.array_equal(*images)
    (warning,) = [r for r in caplog.records if r.name.startswith("triton_diffusers")]
    assert "shared memory is not used" in warning.getMessage()
    with pytest.raises(ServerUnavailable, match="restricted"):
        ask(demo_server, protocol, shared_memory=True, shared_memory_bytes=8 << 20)


def probe(server: Server, protocol: str, *names: str) -> subprocess.CompletedProcess[str]:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    command = [sys.executable, "-m", "builder.main", "probe", *names]
    command += ["--url", url, "--protocol", protocol, "--timeout", "30"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.usefixtures("without_key")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_probe_works_without_the_key(demo_server: Server, protocol: str) -> None:
    for names in ((), ("demo",)):
        assert "demo: ready" in probe(demo_server, protocol, *names).stdout
    refused = probe(demo_server, protocol, "dem")
    assert refused.returncode == 1
    assert "A model that is loading is not listed here" in refused.stderr


def test_an_operators_key_file(serve, repository, tmp_path):  # noqa: F811
    """It is written once, works as `curl -H @FILE` reads it, and is read at the next start."""
    file = tmp_path / "admin-key"
    serving = serve("--repository", repository, "--admin-key-file", file)
    serving.wait_until_ready()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    path = f"http://{serving.http}/v2/repository/models/first"
    for call in ("unload", "load"):
        command = ["curl", "-fsS", "-H", f"@{file}", "-X", "POST", f"{path}/{call}"]
        assert subprocess.run(command, timeout=60).returncode == 0
    written = file.read_text()
    serving.process.terminate()
    assert serving.wait() == 0
    again = serve("--repository", repository, "--admin-key-file", file, "first")
    again.wait_until_ready()
    assert file.read_text() == written
    assert admin_key.read_local(again.http) == admin_key.read_key_file(file)


def test_a_host_that_is_not_loopback_is_warned_about(serve, repository):  # noqa: F811
    serving: Serving = serve("--repository", repository, "--host", "0.0.0.0", "first")
    serving.wait_for("warning: everybody who reaches 0.0.0.0 may call the models")
    serving.wait_until_ready()


def test_the_key_of_a_server_that_ended_is_gone(serve, repository):  # noqa: F811
    serving = serve("--repository", repository, "first")
    serving.wait_until_ready()
    assert admin_key.read_local(serving.http)
    serving.process.terminate()
    assert serving.wait() == 0
    assert admin_key.read_local(serving.http) is None


def test_a_link_in_place_of_the_key_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("k" * 43)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        link = admin_key.SHARED_MEMORY_DIR / f"triton-admin-key-{port}"
        os.symlink(secret, link)
        try:
            assert admin_key.read_local(f"localhost:{port}") is None
            admin_key.leave_local("n" * 43, port)  # takes the link's place
            assert secret.read_text() == "k" * 43
            assert admin_key.read_local(f"localhost:{port}") == "n" * 43
        finally:
            link.unlink()
