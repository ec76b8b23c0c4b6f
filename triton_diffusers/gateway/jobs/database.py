# SPDX-License-Identifier: Apache-2.0
"""Opening the database of the jobs, and where it and their files are kept by default."""

import os
import socket
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from triton_diffusers.errors import ConfigError

BUSY_S = 5
"""How long a connection waits for SQLite's one writer."""

CONNECT_S = 5
STATEMENT_S = 5
"""How long PostgreSQL may take for a statement, with the locks that it waits for."""

SILENCE = {
    "tcp_user_timeout": 1000 * CONNECT_S,
    "keepalives_idle": CONNECT_S,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""A PostgreSQL whose machine or network is gone is found out by the connection."""

POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


def default_folder() -> Path:
    """Return the folder for jobs and files where the operator names none."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "triton-diffusers"


def default_database() -> str:
    """Return the URL of the database where the operator names none."""
    return f"sqlite:///{default_folder() / 'jobs.db'}"


def open_database(url: str) -> Engine:
    """Open SQLite or PostgreSQL; nothing is connected yet.

    Raises ConfigError for another database, and for a driver that is not installed.
    """
    read = _read(url)
    if read.get_backend_name() == "sqlite":
        return _open_sqlite(read)
    try:
        engine = create_engine(
            read.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_S, **SILENCE},
        )
    except ImportError as error:
        raise ConfigError(
            f"database {read.render_as_string()} needs a package: {error}. "
            "Install triton-diffusers[postgres]."
        ) from None
    event.listen(engine, "begin", _begin_postgresql)
    return engine


def _read(url: str) -> URL:
    accepted = "Accepted: sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE."
    try:
        read = make_url(url)
    except ArgumentError:
        raise ConfigError(f"database is no URL. {accepted}") from None
    if read.drivername not in ("sqlite", *POSTGRESQL):
        raise ConfigError(f"database '{read.drivername}' is not supported. {accepted}")
    if read.drivername == "sqlite" and not read.database:
        raise ConfigError(f"database {url} names no file: jobs would be lost. {accepted}")
    return read


def _open_sqlite(url: URL) -> Engine:
    file = Path(str(url.database))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite's own files beside it take its mode
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        with suppress(PermissionError):  # one that another user made
            file.chmod(0o600)
    except OSError as error:
        raise ConfigError(
            f"the jobs' database cannot be made: {error}. Name another: database=sqlite:///FILE."
        ) from None
    engine = create_engine(url, connect_args={"timeout": BUSY_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 must not begin transactions of its own
    _change_to_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")


def _change_to_wal(connection: Any) -> None:
    """Set the journal's mode; SQLite does not wait for it while another opens the file."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the start: a transaction that reads first may not get it later."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Sockets:
    """The connections of an engine to PostgreSQL, as sockets; SQLite has none."""

    def __init__(self, engine: Engine):
        self._open: WeakSet[Any] = WeakSet()
        if engine.dialect.name == "postgresql":
            event.listen(engine, "connect", lambda connection, _: self._open.add(connection))

    def cut(self) -> None:
        """End what waits for a server that does not answer: its threads get an error."""
        for connection in [*self._open]:
            with (
                suppress(Exception),  # psycopg's own, of one that is closed
                socket.socket(fileno=os.dup(connection.fileno())) as copy,
            ):
                copy.shutdown(socket.SHUT_RDWR)


def _begin_postgresql(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{STATEMENT_S}s'")
