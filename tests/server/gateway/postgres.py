# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL, started when a test first asks for it; a missing one fails the test."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MakeDatabase = Callable[[], str]
"""Makes an empty database and returns its URL."""


@contextmanager
def start_postgres() -> Iterator[MakeDatabase]:
    """Run a server for as long as the block does."""
    import pgserver
    import psycopg

    folder = tempfile.mkdtemp(prefix="pg-")  # a socket's path must be short
    server = pgserver.get_server(folder, cleanup_mode="delete")

    def make() -> str:
        name = f"jobs_{secrets.token_hex(4)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return str(server.get_uri(name))

    try:
        yield make
    finally:
        server.cleanup()
