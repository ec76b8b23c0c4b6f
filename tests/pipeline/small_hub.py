# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face hub on localhost: folders served over its HTTP interface, and its refusals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {
    "gated": (403, "GatedRepo"),
    "missing": (401, "RepoNotFound"),
    "forbidden": (403, ""),
    "broken": (500, ""),
}
"""Owner of a model -> the status and X-Error-Code with which the hub refuses everything of it."""


@contextmanager
def small_hub(models: Mapping[str, Path]) -> Iterator[str]:
    """Serve models (id -> folder) as long as the context lasts; yields HF_ENDPOINT."""

    class Handler(_Handler):
        folders = models

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    folders: Mapping[str, Path]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        owner, name, *rest = parts
        folder = self.folders.get(f"{owner}/{name}")
        if owner in REFUSALS:
            self._send(*REFUSALS[owner])
        elif folder is None:
            self._send(404, "RepoNotFound")
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._send(404, "RevisionNotFound")
        elif rest[:1] == ["resolve"]:
            self._send_file(folder.joinpath(*rest[2:]), body)
        else:
            self._send_listing(folder, tree=rest[:1] == ["tree"])

    def _send_listing(self, folder: Path, tree: bool) -> None:
        files = sorted(f for f in folder.rglob("*") if f.is_file())
        names = {str(f.relative_to(folder)): f.stat().st_size for f in files}
        listed = [{"type": "file", "path": n, "size": s, "oid": "0" * 40} for n, s in names.items()]
        whole = {"id": "x/y", "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
        self._send(200, body=json.dumps(listed if tree else whole).encode())

    def _send_file(self, file: Path, body: bool) -> None:
        if not file.is_file():
            self._send(404, "EntryNotFound")
            return
        content = file.read_bytes()
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._send(200, body=content if body else b"", length=len(content), etag=etag)

    def _send(
        self, status: int, code: str = "", *, body: bytes = b"", length: int = -1, etag: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length < 0 else length))
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in (("X-Error-Code", code), ("ETag", etag)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
