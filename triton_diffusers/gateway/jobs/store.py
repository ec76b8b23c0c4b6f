# SPDX-License-Identifier: Apache-2.0
"""The jobs' database: SQLite beside one gateway, or PostgreSQL shared by several.

A row is a job. Whoever runs it holds a lease that it renews; a row whose lease ran out belongs to
nobody and is run again, a row that is gone was deleted and its call must stop. Every method blocks:
the gateway calls them in threads.
"""

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    delete,
    extract,
    func,
    insert,
    select,
    text,
    update,
)

from triton_diffusers.gateway.jobs.database import Sockets, open_database

LEASE_S = 15.0
"""How long a job belongs to a gateway that says nothing of it."""

MAX_TRIES = 3
"""How often a job is started when the gateway or the tritonserver goes away while it runs."""

SCHEMA_LOCK = 0x7D1FF
"""PostgreSQL's advisory lock while the table is made: two gateways may start at once."""

QUEUED, RUNNING, COMPLETED, FAILED = "queued", "in_progress", "completed", "failed"
UNFINISHED, FINISHED = (QUEUED, RUNNING), (COMPLETED, FAILED)

NUMBER = BigInteger().with_variant(Integer, "sqlite")

JOBS = Table(
    "triton_diffusers_jobs_1",  # the 1 becomes a 2 when the columns change
    MetaData(),
    Column("number", NUMBER, primary_key=True, autoincrement=True),
    Column("id", String(64), unique=True, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt", Text),
    Column("keywords", JSON, nullable=False),
    Column("media", JSON, nullable=False),
    Column("size", String(32)),
    Column("seconds", String(32)),
    Column("seed", BigInteger),
    Column("notes", JSON, nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("progress", Integer, nullable=False, default=0),
    Column("tries", Integer, nullable=False, default=0),
    Column("owner", String(64)),
    Column("due_at", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("completed_at", Float),
    Column("expires_at", Float),
    Column("file", String(128)),
    Column("media_type", String(32)),
    Column("error_code", String(64)),
    Column("error_message", Text),
)
"""due_at: when a queued job may be claimed; of a running one, when its lease ends."""

ROW = JOBS.c


@dataclass(frozen=True)
class StoredJob:
    """A row. Times are seconds since 1970; keywords: the call's inputs, files left out.

    media: input -> names of the files that it takes. file: the result's name.
    """

    number: int
    id: str
    model: str
    prompt: str | None
    keywords: dict[str, Any]
    media: dict[str, list[str]]
    size: str | None
    seconds: str | None
    seed: int | None
    notes: list[str]
    status: str
    progress: int
    tries: int
    owner: str | None
    due_at: float
    created_at: float
    completed_at: float | None
    expires_at: float | None
    file: str | None
    media_type: str | None
    error_code: str | None
    error_message: str | None

    @property
    def files(self) -> list[str]:
        """The names of all files that belong to it."""
        return [
            *(name for names in self.media.values() for name in names),
            *filter(None, [self.file]),
        ]


ID = re.compile(r"video_[0-9a-f]{32}")


def new_id() -> str:
    """Return an id that nobody can guess."""
    return f"video_{secrets.token_hex(16)}"


class JobsFullError(Exception):
    """As many jobs wait, or are kept, as may."""

    def __init__(self, count: int, unfinished: bool):
        super().__init__(count)
        self.count, self.unfinished = count, unfinished


class JobStore:
    """The jobs of every gateway that uses one database.

    url: sqlite:///FILE or postgresql://... Raises ConfigError for any other.
    """

    def __init__(self, url: str):
        self._engine = open_database(url)
        self._sockets = Sockets(self._engine)

    def prepare(self) -> None:
        """Make the table where there is none. Raises SQLAlchemyError when nothing answers."""
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})"))
            JOBS.metadata.create_all(connection)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def cut(self) -> None:
        """End calls of other threads that a server holds without answering: they raise."""
        self._sockets.cut()

    def add(self, values: Mapping[str, Any], max_unfinished: int, max_kept: int) -> StoredJob:
        """Queue a job. Raises JobsFullError."""
        with self._writing() as connection:
            for limit, statuses in (
                (max_unfinished, UNFINISHED),
                (max_kept, UNFINISHED + FINISHED),
            ):
                count = _count(connection, statuses)
                if count >= limit:
                    raise JobsFullError(count, statuses == UNFINISHED)
            now = _now(connection)
            row = {**values, "status": QUEUED, "created_at": now, "due_at": now}
            return _job(connection.execute(insert(JOBS).values(row).returning(JOBS)).one())

    def get(self, id: str) -> StoredJob | None:
        """Return a job; None where there is none of that id."""
        with self._reading() as connection:
            row = connection.execute(select(JOBS).where(ROW.id == id)).one_or_none()
            return None if row is None else _job(row)

    def page(
        self, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> tuple[list[StoredJob], bool] | None:
        """Return up to `limit` jobs behind the one called `after`, and whether there are more.

        None where `after` names no job.
        """
        query = select(JOBS).order_by(ROW.number.asc() if order == "asc" else ROW.number.desc())
        with self._reading() as connection:
            if after is not None:
                start = connection.scalar(select(ROW.number).where(ROW.id == after))
                if start is None:
                    return None
                query = query.where(ROW.number > start if order == "asc" else ROW.number < start)
            rows = connection.execute(query.limit(limit + 1)).all()
        return [_job(row) for row in rows[:limit]], len(rows) > limit

    def delete(self, id: str) -> StoredJob | None:
        """Remove a job; whoever runs it finds out when it renews its lease."""
        with self._writing() as connection:
            row = connection.execute(delete(JOBS).where(ROW.id == id).returning(JOBS)).one_or_none()
            return None if row is None else _job(row)

    def claim(self, owner: str) -> StoredJob | None:
        """Take the oldest job that nobody runs; None when there is none.

        One that was started MAX_TRIES times is taken too: whoever gets it gives it up.
        """
        with self._writing() as connection:
            now = _now(connection)
            free = ROW.status.in_(UNFINISHED) & (ROW.due_at <= now)
            oldest = select(ROW.number).where(free).order_by(ROW.number).limit(1)
            number = connection.scalar(oldest.with_for_update(skip_locked=True))
            if number is None:
                return None
            taken = (
                update(JOBS)
                .where(ROW.number == number)
                .values(status=RUNNING, owner=owner, due_at=now + LEASE_S, tries=ROW.tries + 1)
            )
            return _job(connection.execute(taken.returning(JOBS)).one())

    def renew(self, job: StoredJob, progress: int) -> bool:
        """Say that a job still runs. False: it was deleted, or another gateway took it over."""
        with self._writing() as connection:
            lease = {"due_at": _now(connection) + LEASE_S, "progress": progress}
            return _change(connection, job, lease)

    def release(self, job: StoredJob, wait_s: float, tries: int) -> bool:
        """Put a job back into the queue, where it can be claimed after `wait_s` seconds."""
        with self._writing() as connection:
            due_at = _now(connection) + wait_s
            values = {"status": QUEUED, "owner": None, "due_at": due_at, "tries": tries}
            return _change(connection, job, values | {"progress": 0})

    def release_all(self, owner: str) -> None:
        """Put back what a gateway that ends was running: the next one need not wait for a lease."""
        mine = and_(ROW.owner == owner, ROW.status == RUNNING)
        with self._writing() as connection:
            values = {"status": QUEUED, "owner": None, "due_at": 0.0, "tries": ROW.tries - 1}
            connection.execute(update(JOBS).where(mine).values(values))

    def finish(self, job: StoredJob, expire_after_s: float, values: Mapping[str, Any]) -> bool:
        """Set the result of a job. False: it is no longer this gateway's, nothing was changed."""
        with self._writing() as connection:
            now = _now(connection)
            ends = {"completed_at": now, "expires_at": now + expire_after_s, "owner": None}
            return _change(connection, job, {**ends, "media": {}, **values})

    def expire(self) -> list[StoredJob]:
        """Remove the finished jobs whose time is over, and return them."""
        with self._writing() as connection:
            over = and_(ROW.status.in_(FINISHED), ROW.expires_at <= _now(connection))
            return [
                _job(row) for row in connection.execute(delete(JOBS).where(over).returning(JOBS))
            ]

    def known(self, ids: list[str]) -> set[str]:
        """Return which of these are jobs."""
        with self._reading() as connection:
            return set(connection.scalars(select(ROW.id).where(ROW.id.in_(ids))))

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by status."""
        with self._reading() as connection:
            rows = connection.execute(
                select(ROW.status, func.count().label("jobs")).group_by(ROW.status)
            ).all()
        return {row.status: row.jobs for row in rows}

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                yield connection


def _now(connection: Connection) -> float:
    """Return the time by the database's clock: several gateways compare theirs with it."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.scalar(select(extract("epoch", func.clock_timestamp()))) or 0.0)


def _count(connection: Connection, statuses: tuple[str, ...]) -> int:
    query = select(func.count()).select_from(JOBS).where(ROW.status.in_(statuses))
    return connection.scalar(query) or 0


def _change(connection: Connection, job: StoredJob, values: Mapping[str, Any]) -> bool:
    """Change a job that is still run by the gateway that claimed it, and for the same try."""
    held = and_(ROW.id == job.id, ROW.owner == job.owner, ROW.tries == job.tries)
    changed = connection.execute(update(JOBS).where(held).values(**values))
    return changed.rowcount == 1


def _job(row: Any) -> StoredJob:
    return StoredJob(**{field.name: getattr(row, field.name) for field in fields(StoredJob)})
