# SPDX-License-Identifier: Apache-2.0
"""The jobs' database, on SQLite and on a real PostgreSQL, and their files."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from tests.server.gateway.postgres import MakeDatabase
from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway.jobs import store as job_store
from triton_diffusers.gateway.jobs.files import FilesError, JobFiles
from triton_diffusers.gateway.jobs.store import JOBS, JobsFullError, JobStore, StoredJob, new_id

ROOMY = (1000, 1000)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new folder' / 'jobs.db'}"
    make: MakeDatabase = request.getfixturevalue("make_postgres_database")
    return make()


@pytest.fixture
def stores(database: str) -> Iterator[tuple[JobStore, JobStore]]:
    """Two gateways' views of one database."""
    both = JobStore(database), JobStore(database)
    for store in both:
        store.prepare()
    yield both
    for store in both:
        store.close()


@pytest.fixture
def store(stores: tuple[JobStore, JobStore]) -> JobStore:
    return stores[0]


def add(store: JobStore, limits: tuple[int, int] = ROOMY, **values: Any) -> StoredJob:
    row = {"id": new_id(), "model": "wan", "keywords": {"seed": 2**40}, "media": {}, "notes": []}
    return store.add(row | values, *limits)


def end_lease(store: JobStore, job: StoredJob) -> None:
    """Let a lease run out, as it does when a gateway dies."""
    with store._writing() as connection:
        connection.execute(update(JOBS).where(JOBS.c.id == job.id).values(due_at=0.0))


def claim(store: JobStore, owner: str = "one") -> StoredJob:
    job = store.claim(owner)
    assert job is not None
    return job


def test_a_job_is_kept_as_it_was_added(stores: tuple[JobStore, JobStore]) -> None:
    made = add(stores[0], prompt="a kite", media={"image": ["a", "b"]}, notes=["x"], seed=2**40)
    kept = stores[1].get(made.id)
    assert kept == made
    assert made.status == "queued"
    assert made.files == ["a", "b"]
    assert abs(made.created_at - time.time()) < 60
    assert stores[0].get("video_0") is None


def test_the_oldest_job_is_claimed_first_and_once(stores: tuple[JobStore, JobStore]) -> None:
    made = [add(stores[0]).id for _ in range(3)]
    claimed = [claim(stores[n % 2]) for n in range(3)]
    assert [job.id for job in claimed] == made
    assert {(job.status, job.tries) for job in claimed} == {("in_progress", 1)}
    assert stores[0].claim("one") is None


def test_many_gateways_claim_each_job_once(stores: tuple[JobStore, JobStore]) -> None:
    made = {add(stores[0]).id for _ in range(60)}

    def work(worker: int) -> list[str]:
        mine = []
        while job := stores[worker % 2].claim(f"worker {worker}"):
            mine.append(job.id)
            assert stores[worker % 2].finish(job, 60, {"status": "completed"})
        return mine

    with ThreadPoolExecutor(8) as threads:
        claimed = [id for ids in threads.map(work, range(8)) for id in ids]
    assert len(claimed) == 60
    assert set(claimed) == made
    assert stores[0].counts() == {"completed": 60}


def test_a_job_whose_lease_ran_out_is_taken_over(stores: tuple[JobStore, JobStore]) -> None:
    one, other = stores
    job = add(one)
    first = claim(one, "one")
    assert one.renew(first, 40)
    assert one.get(job.id).progress == 40
    assert other.claim("other") is None
    end_lease(one, job)
    second = claim(other, "other")
    assert (second.id, second.tries) == (job.id, 2)
    assert not one.renew(first, 50)
    assert not one.finish(first, 60, {"status": "failed"})
    assert not one.release(first, 0, 0)
    assert other.finish(second, 60, {"status": "completed"})


def test_a_deleted_job_tells_who_runs_it(stores: tuple[JobStore, JobStore]) -> None:
    one, other = stores
    add(one)
    running = claim(one)
    deleted = other.delete(running.id)
    assert deleted is not None
    assert other.delete(running.id) is None
    assert not one.renew(running, 50)
    assert not one.finish(running, 60, {"status": "completed"})


def test_a_job_that_waits_is_claimed_later_and_lets_others_pass(store: JobStore) -> None:
    first, second = add(store), add(store)
    assert store.release(claim(store), 0.5, 0)
    assert claim(store).id == second.id
    assert store.claim("one") is None
    time.sleep(0.6)
    again = claim(store)
    assert (again.id, again.tries) == (first.id, 1)


def test_what_a_gateway_ran_is_free_when_it_ends(stores: tuple[JobStore, JobStore]) -> None:
    one, other = stores
    mine, others = add(one), add(one)
    claim(one, "one")
    claim(other, "other")
    one.release_all("one")
    again = claim(other, "other")
    assert (again.id, again.tries) == (mine.id, 1)
    assert one.get(others.id).owner == "other"


def test_finished_jobs_expire_and_others_do_not(store: JobStore) -> None:
    old, kept, waits = add(store), add(store), add(store)
    assert store.finish(claim(store), 0.2, {"status": "failed", "file": "f"})
    assert store.finish(claim(store), 60, {"status": "completed"})
    assert store.expire() == []
    time.sleep(0.3)
    assert [(job.id, job.file) for job in store.expire()] == [(old.id, "f")]
    assert store.known([old.id, kept.id, waits.id]) == {kept.id, waits.id}


def test_pages_follow_each_other(store: JobStore) -> None:
    made = [add(store).id for _ in range(5)]
    assert store.page(None, 2, "asc") is not None
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen: list[str] = []
        more = True
        while more:
            page = store.page(seen[-1] if seen else None, 2, order)
            assert page is not None
            seen += [job.id for job in page[0]]
            more = page[1]
        assert seen == expected
    assert store.page("video_0", 2, "asc") is None


def test_no_more_jobs_are_taken_than_may_wait_or_be_kept(store: JobStore) -> None:
    add(store, (2, 3))
    store.finish(claim(store), 60, {"status": "completed"})
    add(store, (2, 3))
    add(store, (2, 3))
    with pytest.raises(JobsFullError) as waiting:
        add(store, (2, 3))
    assert (waiting.value.count, waiting.value.unfinished) == (2, True)
    with pytest.raises(JobsFullError) as kept:
        add(store, (3, 3))
    assert (kept.value.count, kept.value.unfinished) == (3, False)


def test_two_gateways_may_make_the_table_at_once(database: str) -> None:
    made = [JobStore(database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(JobStore.prepare, made))
    add(made[0])
    assert claim(made[3])
    for store in made:
        store.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://host/jobs", "'mysql' is not supported"),
        ("jobs.db", "no URL"),
        ("sqlite://", "names no file"),
        ("sqlite:////proc/no/jobs.db", "cannot be made"),
    ],
)
def test_other_databases_are_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JobStore(url)


def test_a_database_that_is_locked_is_told_soon(
    stores: tuple[JobStore, JobStore], database: str
) -> None:
    one, other = stores
    with one._writing() as connection:
        if database.startswith("postgresql"):
            connection.exec_driver_sql("LOCK TABLE triton_diffusers_jobs_1")
        with pytest.raises(OperationalError):
            other.claim("other")
    assert other.claim("other") is None


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_files_are_kept_in_a_folder_or_another_store(kind: str, tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "files") if kind == "local" else f"memory://{tmp_path.name}")
    name = f"{new_id()}-1.mp4"
    files.write(name, b"0123456789" * 200_000)
    assert files.size(name) == 2_000_000
    if kind == "local":
        assert stat.S_IMODE((tmp_path / "files" / name).stat().st_mode) == 0o600
    assert files.read(name)[:10] == b"0123456789"
    part = list(files.chunks(name, 5, 1_500_000))
    assert b"".join(part) == (b"0123456789" * 150_000)[5:]
    assert max(map(len, part)) <= 2**20
    assert files.older_than(60) == {}
    assert list(files.older_than(-60)) == [name]
    files.remove(name, name)
    with pytest.raises(FileNotFoundError):
        files.size(name)


class Broken(MemoryFileSystem):
    """A store that fails in a way of its own."""

    protocol = "broken"

    def ls(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no answer")

    pipe_file = cat_file = info = rm_file = ls


def test_a_store_that_fails_is_told_in_one_way(caplog: pytest.LogCaptureFixture) -> None:
    fsspec.register_implementation("broken", Broken, clobber=True)
    files = JobFiles("broken://x")
    name = f"{new_id()}-1.mp4"
    for ask in (files.size, files.read, lambda name: files.write(name, b"x")):
        with pytest.raises(FilesError, match="no answer"):
            ask(name)
    with pytest.raises(FilesError):
        files.older_than(1)
    caplog.clear()
    files.remove(name)
    assert "cannot be removed" in caplog.text


def test_a_folder_that_went_away_is_told(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "files"))
    (tmp_path / "files").rmdir()
    with pytest.raises(FilesError):
        files.write(f"{new_id()}-1.mp4", b"x")


def test_only_files_of_jobs_count_as_old(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path))
    job = new_id()
    files.write(f"{job}-image-0", b"x")
    (tmp_path / "jobs.db").write_bytes(b"x")
    (tmp_path / f"{job}").write_bytes(b"x")
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))
    assert files.older_than(3600) == {f"{job}-image-0": job}


def test_a_store_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        JobFiles("nosuch://bucket/folder")


def test_a_lease_is_renewed_in_time() -> None:
    from triton_diffusers.gateway.jobs.jobs import RENEW_S

    assert RENEW_S * 5 < job_store.LEASE_S
