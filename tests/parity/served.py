# SPDX-License-Identifier: Apache-2.0
"""Entries written by `builder add-model`, on a real tritonserver of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import builder.main
from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server, start_server
from tests.parity.fresh import call_fresh, run_command
from triton_diffusers.client import DiffusersClient, DiffusersClientError
from triton_diffusers.client.result import Result

PROTOCOLS = ("grpc", "http")
LOAD_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 300.0


def write_entry(repository: Path, name: str, model: Path, options: Sequence[str] = ()) -> None:
    """Run `builder add-model`. Raises ServerError with its message."""
    argv = ["add-model", str(model), "--name", name, "--repository", str(repository), *options]
    code, printed = call_fresh(run_command, builder.main.main, argv)
    if code != 0:
        raise ServerError(f"builder add-model: {printed.strip()}")


class Repository:
    """A model repository and its server, started when needed and again when it died."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "tritonserver.log"
        self._entries = folder / "models"
        self._entries.mkdir(parents=True)
        self._server: Server | None = None

    def __enter__(self) -> Repository:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def server(self) -> Server:
        """The running server."""
        if self._server is None or not self._server.is_running():
            self.stop()
            self._server = start_server(self._entries, log=self.log, exit_timeout_s=0)
        return self._server

    def log_tail(self) -> str:
        """Return the end of the log of all its servers."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-30:])

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def add(self, name: str, model: Path, options: Sequence[str] = ()) -> None:
        """Write an entry, unless it is there, and load it."""
        if not (self._entries / name).exists():
            write_entry(self._entries, name, model, options)
        self.server.load(name, LOAD_TIMEOUT_S)

    def remove(self, name: str) -> None:
        """Unload an entry; a server that died has nothing to unload."""
        if self._server is not None and self._server.is_running():
            self._server.unload(name)

    def open_client(self, name: str, protocol: str) -> DiffusersClient:
        server = self.server
        url = server.http_url if protocol == "http" else server.grpc_url
        return DiffusersClient(url, model=name, protocol=protocol)

    def call(self, name: str, protocol: str, **inputs: Any) -> Result:
        """Call an entry once, over a connection of its own."""
        with self.open_client(name, protocol) as client:
            return client.generate(timeout_s=CALL_TIMEOUT_S, **inputs)


__all__ = ["PROTOCOLS", "DiffusersClientError", "Repository", "ServerError", "write_entry"]
