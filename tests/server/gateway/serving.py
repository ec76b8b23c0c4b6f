# SPDX-License-Identifier: Apache-2.0
"""A real gateway: uvicorn in a thread of the test process, on a free port."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from triton_diffusers.gateway import Settings, create_app
from triton_diffusers.gateway.connections import Connection

START_S = 30.0


@contextmanager
def serve_gateway(*triton: str, only_local: bool = False, **settings: Any) -> Iterator[str]:
    """Serve the gateway in front of these tritonservers (gRPC addresses); yield its base URL."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"database": f"sqlite:///{folder}/jobs.db", "files": folder}
        app = create_app(Settings(triton=triton, **places | settings), only_local=only_local)
        with _serve(app) as url:
            yield url


@contextmanager
def _serve(app: FastAPI) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        config = uvicorn.Config(
            app, http=Connection, ws="none", log_level="warning", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline, "the gateway did not start in time"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive(), "the gateway did not stop"
