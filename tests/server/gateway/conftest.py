# SPDX-License-Identifier: Apache-2.0
"""The gateway in front of the demo server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

# where a gateway without a database of its own keeps its jobs
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-")


from builder.tritonserver.server import Server
from tests.server.gateway.browser import browser as browser
from tests.server.gateway.browser import page_gateway as page_gateway
from tests.server.gateway.browser import page_server as page_server
from tests.server.gateway.browser import tab as tab
from tests.server.gateway.postgres import MakeDatabase, start_postgres
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer


@pytest.fixture(scope="session")
def gateway(demo_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a gateway with the settings' defaults."""
    folder = tmp_path_factory.mktemp("gateway")
    database = f"sqlite:///{folder / 'jobs.db'}"
    with serve_gateway(demo_server.grpc_url, database=database, files=str(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def tiny_gateway(
    tiny_server: TinyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The base URL of a gateway before the tiny entries, each loaded with tiny_server.load()."""
    folder = tmp_path_factory.mktemp("tiny-gateway")
    database = f"sqlite:///{folder / 'jobs.db'}"
    with serve_gateway(tiny_server.triton.grpc_url, database=database, files=str(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def make_postgres_database() -> Iterator[MakeDatabase]:
    """A function that makes an empty database on a real PostgreSQL and returns its URL."""
    with start_postgres() as make:
        yield make
