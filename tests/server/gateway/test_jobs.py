# SPDX-License-Identifier: Apache-2.0
"""Jobs that outlive their gateway, wait for a model, are shared by gateways, and end."""

from __future__ import annotations

import base64
import io
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest

from tests.server.gateway.postgres import MakeDatabase
from tests.server.gateway.serving import serve_gateway
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from tests.waiting import wait_for
from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway import Settings, create_app

KITE = {"prompt": "a kite over a field", "num_inference_steps": 2, "num_frames": 5, "seed": 7}
SIZE = {"width": 32, "height": 16}
LONG = 20_000
"""Steps that take longer than a test."""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def entries(tiny_server: TinyServer) -> None:
    for entry in ("wan", "wan-streamed", "wan-narrow", "ltx"):
        tiny_server.load(entry)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Where a gateway keeps its jobs."""
    return {"database": f"sqlite:///{tmp_path}/jobs.db", "files": f"{tmp_path}/files"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def create(url: str, model: str = "wan", **body: Any) -> str:
    """Queue a job; return its id."""
    created = httpx.post(f"{url}/v1/videos", json={**KITE, **SIZE, **body, "model": model})
    assert created.status_code == 200, created.text
    assert created.json()["status"] == "queued"
    return str(created.json()["id"])


def get(url: str, id: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/v1/videos/{id}")
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    return job


def wait(url: str, id: str, *statuses: str) -> dict[str, Any]:
    """Return the job when its status is one of these."""

    def look() -> dict[str, Any] | None:
        job = get(url, id)
        assert job["status"] != "failed" or "failed" in statuses, job
        return job if job["status"] in statuses else None

    found: dict[str, Any] = wait_for(look)
    return found


def content(url: str, id: str) -> bytes:
    answer = httpx.get(f"{url}/v1/videos/{id}/content")
    assert answer.status_code == 200, answer.text
    return answer.content


def expected(tiny_server: TinyServer, entry: str = "wan", **inputs: Any) -> bytes:
    asked = {**KITE, **SIZE, **inputs}
    file: bytes = tiny_server.ask(entry, **asked, output_format="mp4").media[0]
    return file


@contextmanager
def gateway_process(triton: str, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A gateway in a process of its own, which a test may kill."""
    port = free_port()
    prefix = "TRITON_DIFFUSERS_GATEWAY_"
    variables = {f"{prefix}{name.upper()}": text for name, text in settings.items()}
    app = ["--factory", "triton_diffusers.gateway:create_app"]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *app, "--port", str(port), "--log-level", "warning"],
        env=os.environ | variables | {f"{prefix}TRITON": triton},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: process.poll() is not None or _answers(url))
        assert process.poll() is None, "the gateway ended"
        yield url, process
    finally:
        process.kill()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_job_tells_its_progress(tiny_gateway: str) -> None:
    id = create(tiny_gateway, "wan-streamed", num_inference_steps=2000)
    seen = set()

    def look() -> bool:
        job = get(tiny_gateway, id)
        seen.add((job["status"], job["progress"]))
        return bool(job["status"] == "completed")

    wait_for(look)
    between = [progress for status, progress in seen if status == "in_progress" and progress]
    assert between
    assert max(between) < 100
    assert ("completed", 100) in seen


def test_what_a_job_starts_from_is_kept_until_it_ends(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    tiny_server.load("wan-starts")
    start = io.BytesIO()
    draw_picture(23, 32, 16).save(start, format="PNG")
    with serve_gateway(tiny_server.triton.grpc_url, job_workers=1, **places) as url:
        first = create(url, "wan-streamed", num_inference_steps=LONG)
        wait(url, first, "in_progress")
        text = base64.b64encode(start.getvalue()).decode()
        id = create(url, "wan-starts", input_reference=text)
        (kept,) = Path(places["files"]).iterdir()
        assert kept.read_bytes() == start.getvalue()
        httpx.delete(f"{url}/v1/videos/{first}")
        wait(url, id, "completed")
        made = expected(tiny_server, "wan-starts", image=start.getvalue())
        assert content(url, id) == made
        wait_for(lambda: not kept.exists(), 5)
        assert len(list(Path(places["files"]).iterdir())) == 1


def test_deleting_a_running_job_stops_the_model(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    with serve_gateway(tiny_server.triton.grpc_url, **places) as url:
        id = create(url, "wan-streamed", num_inference_steps=LONG)
        wait(url, id, "in_progress")
        deleted = httpx.delete(f"{url}/v1/videos/{id}")
        assert deleted.json() == {"id": id, "object": "video.deleted", "deleted": True}
        assert httpx.get(f"{url}/v1/videos/{id}").status_code == 404
        assert httpx.delete(f"{url}/v1/videos/{id}").status_code == 404
        next_one = create(url, "wan-streamed")  # runs only when the first one has stopped
        wait(url, next_one, "completed")
        assert [file.name.split("-")[0] for file in Path(places["files"]).iterdir()] == [next_one]


def test_a_job_survives_a_gateway_that_is_killed(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    triton = tiny_server.triton.grpc_url
    steps = {"num_inference_steps": 300}
    with gateway_process(triton, job_workers="1", **places) as (url, process):
        running = create(url, "wan-streamed", **steps)
        queued = create(url, "wan")
        wait(url, running, "in_progress")
        assert get(url, queued)["status"] == "queued"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with gateway_process(triton, **places) as (url, _):
        wait(url, queued, "completed")
        wait(url, running, "completed")
        assert content(url, queued) == expected(tiny_server)
        assert content(url, running) == expected(tiny_server, "wan-streamed", **steps)


def test_a_job_of_a_gateway_that_ends_is_run_at_once_by_the_next(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    triton = tiny_server.triton.grpc_url
    with serve_gateway(triton, **places) as url:
        id = create(url, "wan-streamed", num_inference_steps=2000)
        wait(url, id, "in_progress")
    with serve_gateway(triton, **places) as url:
        wait_for(lambda: get(url, id)["status"] == "in_progress", 5)
        wait(url, id, "completed")


def test_a_job_waits_while_the_models_queue_is_full(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    triton = tiny_server.triton.grpc_url
    with serve_gateway(triton, job_workers=8, **places) as url:
        ids = [create(url, "wan-narrow", num_inference_steps=100 + n) for n in range(5)]
        for n, id in enumerate(ids):
            wait(url, id, "completed")
            made = expected(tiny_server, "wan-narrow", num_inference_steps=100 + n)
            assert content(url, id) == made


def test_a_job_waits_while_its_model_is_loaded_again(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    triton = tiny_server.triton
    with serve_gateway(triton.grpc_url, job_workers=1, **places) as url:
        first = create(url, "wan-streamed", num_inference_steps=LONG)
        wait(url, first, "in_progress")
        id = create(url, "ltx", **{"width": 64, "height": 32})
        triton.unload("ltx")
        try:
            httpx.delete(f"{url}/v1/videos/{first}")
            time.sleep(3)
            assert get(url, id)["status"] == "queued"
        finally:
            triton.load("ltx", 120)
        wait(url, id, "completed")


def test_what_the_server_refuses_fails_with_its_words(tiny_gateway: str) -> None:
    id = create(tiny_gateway, num_inference_steps=0)
    job = wait(tiny_gateway, id, "failed")
    assert job["error"]["code"] == "invalid_request_error"
    assert "num_inference_steps" in job["error"]["message"]
    assert "send a number of at least 1" in job["error"]["message"]
    assert job["completed_at"] >= job["created_at"]
    refused = httpx.get(f"{tiny_gateway}/v1/videos/{id}/content")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "video_failed"


def test_finished_jobs_expire_with_their_files(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    with serve_gateway(tiny_server.triton.grpc_url, expire_after_s=2, **places) as url:
        id = create(url)
        job = wait(url, id, "completed")
        assert job["expires_at"] - job["completed_at"] in (2, 3)
        assert len(list(Path(places["files"]).iterdir())) == 1
        wait_for(lambda: httpx.get(f"{url}/v1/videos/{id}").status_code == 404, 10)
        wait_for(lambda: not list(Path(places["files"]).iterdir()), 10)


def test_more_jobs_than_may_wait_are_refused(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    with serve_gateway(tiny_server.triton.grpc_url, max_jobs=1, max_stored_jobs=2, **places) as url:
        running = create(url, "wan-streamed", num_inference_steps=LONG)
        body = {**KITE, **SIZE, "model": "wan"}
        refused = httpx.post(f"{url}/v1/videos", json=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "too_many_jobs"
        assert "max_jobs" in refused.json()["error"]["message"]
        httpx.delete(f"{url}/v1/videos/{running}")
        for _ in range(2):
            wait(url, create(url), "completed")
        refused = httpx.post(f"{url}/v1/videos", json=body)
        assert refused.status_code == 429
        assert "max_stored_jobs" in refused.json()["error"]["message"]


def test_gateways_share_the_jobs_of_one_postgresql(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    triton = tiny_server.triton.grpc_url
    places = {"database": make_postgres_database(), "files": str(tmp_path)}
    with (
        serve_gateway(triton, job_workers=1, **places) as one,
        serve_gateway(triton, job_workers=1, **places) as other,
    ):
        ids = [create(one, seed=n) for n in range(6)]
        for n, id in enumerate(ids):
            wait(other, id, "completed")
            assert content(other, id) == content(one, id) == expected(tiny_server, seed=n)
        listed = httpx.get(f"{other}/v1/videos", params={"order": "asc"}).json()["data"]
        assert [job["id"] for job in listed] == ids
        with psycopg.connect(places["database"]) as connection:
            row = connection.execute("SELECT min(tries), max(tries) FROM triton_diffusers_jobs_1")
            assert row.fetchone() == (1, 1)


def test_a_job_can_be_deleted_on_a_gateway_that_does_not_run_it(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    triton = tiny_server.triton.grpc_url
    places = {"database": make_postgres_database(), "files": str(tmp_path)}
    with serve_gateway(triton, **places) as one:
        id = create(one, "wan-streamed", num_inference_steps=LONG)
        wait(one, id, "in_progress")
        with serve_gateway(triton, **places) as other:
            assert httpx.delete(f"{other}/v1/videos/{id}").status_code == 200
            wait(other, create(other, "wan-streamed"), "completed")


def test_a_job_of_a_gateway_that_died_is_taken_over_by_another(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    triton = tiny_server.triton.grpc_url
    places = {"database": make_postgres_database(), "files": str(tmp_path)}
    steps = {"num_inference_steps": 300}
    with gateway_process(triton, **places) as (url, process):
        id = create(url, "wan-streamed", **steps)
        wait(url, id, "in_progress")
        with serve_gateway(triton, **places) as survivor:
            process.kill()
            wait(survivor, id, "completed")
            assert content(survivor, id) == expected(tiny_server, "wan-streamed", **steps)


def test_texts_that_postgresql_cannot_keep_are_refused(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    places = {"database": make_postgres_database(), "files": str(tmp_path)}
    with serve_gateway(tiny_server.triton.grpc_url, **places) as url:
        body = {**KITE, **SIZE, "model": "wan", "prompt": "a\0b"}
        refused = httpx.post(f"{url}/v1/videos", json=body)
        assert refused.status_code == 400, refused.text
        assert "no job can keep" in refused.json()["error"]["message"]
        for odd in ("video_%00", "%00", "video_" + "f" * 31 + "%ff"):
            assert httpx.get(f"{url}/v1/videos/{odd}").status_code == 404
            assert httpx.delete(f"{url}/v1/videos/{odd}").status_code == 404
            assert httpx.get(f"{url}/v1/videos?after={odd}").status_code == 400


def test_a_database_that_is_lost_is_told(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    database = make_postgres_database()
    with serve_gateway(tiny_server.triton.grpc_url, database=database, files=str(tmp_path)) as url:
        base, _, rest = database.partition("/jobs_")
        name, _, query = rest.partition("?")
        with psycopg.connect(f"{base}/postgres?{query}", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE jobs_{name} WITH (FORCE)")
        lost = httpx.get(f"{url}/v1/videos")
        assert lost.status_code == 503
        assert "retry-after" in lost.headers
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 200


def test_a_database_that_is_locked_is_told_and_does_not_hold_the_end_up(
    tiny_server: TinyServer, places: dict[str, str], tmp_path: Path
) -> None:
    body = {**KITE, **SIZE, "model": "wan"}
    with (
        gateway_process(tiny_server.triton.grpc_url, **places) as (url, process),
        closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as locked,
    ):
        locked.execute("BEGIN IMMEDIATE")
        refused = httpx.post(f"{url}/v1/videos", json=body, timeout=30)
        assert refused.status_code == 503, refused.text
        assert "retry-after" in refused.headers
        assert httpx.get(f"{url}/metrics", timeout=4).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@contextmanager
def frozen(database: str) -> Iterator[None]:
    """A PostgreSQL that takes connections but never answers."""
    (folder,) = parse_qs(urlsplit(database).query)["host"]
    postmaster = int((Path(folder) / "postmaster.pid").read_text().split()[0])
    listed = subprocess.run(["ps", "--ppid", str(postmaster), "-o", "pid="], stdout=subprocess.PIPE)
    processes = [postmaster, *map(int, listed.stdout.split())]
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def test_a_database_that_is_frozen_is_told_and_does_not_hold_the_end_up(
    tiny_server: TinyServer, make_postgres_database: MakeDatabase, tmp_path: Path
) -> None:
    places = {"database": make_postgres_database(), "files": str(tmp_path)}
    with gateway_process(tiny_server.triton.grpc_url, **places) as (url, process):
        wait(url, create(url), "completed")
        with frozen(places["database"]):
            assert httpx.get(f"{url}/v1/videos", timeout=30).status_code == 503
            assert httpx.get(f"{url}/metrics", timeout=5).status_code == 200
            assert httpx.get(f"{url}/health", timeout=5).status_code == 200
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A folder in whose place is a file: nothing can be stored, not even by root."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_bytes(b"")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def test_a_result_that_cannot_be_stored_is_stored_later(
    tiny_server: TinyServer, places: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with serve_gateway(tiny_server.triton.grpc_url, **places) as url:
        with away(Path(places["files"])):
            id = create(url)
            wait_for(lambda: "cannot be stored" in caplog.text)
            assert get(url, id)["status"] == "in_progress"
        wait(url, id, "completed")
        with away(Path(places["files"])):
            lost = httpx.get(f"{url}/v1/videos/{id}/content")
            assert lost.status_code == 503
            assert "retry-after" in lost.headers
        assert content(url, id) == expected(tiny_server)


def test_files_that_cannot_be_stored_are_told(
    tiny_server: TinyServer, places: dict[str, str]
) -> None:
    tiny_server.load("wan-starts")
    start = io.BytesIO()
    draw_picture(23, 32, 16).save(start, format="PNG")
    text = base64.b64encode(start.getvalue()).decode()
    body = {**KITE, **SIZE, "model": "wan-starts", "input_reference": text}
    with serve_gateway(tiny_server.triton.grpc_url, **places) as url:
        with away(Path(places["files"])):
            refused = httpx.post(f"{url}/v1/videos", json=body)
            assert refused.status_code == 503, refused.text
            assert "retry-after" in refused.headers
        assert httpx.get(f"{url}/v1/videos").json()["data"] == []


def test_a_job_that_no_database_should_hold_is_refused(tiny_gateway: str) -> None:
    body = {**KITE, **SIZE, "model": "wan", "prompt": "x" * 300_000}
    refused = httpx.post(f"{tiny_gateway}/v1/videos", json=body)
    assert refused.status_code == 413, refused.text
    assert "/v1/videos/sync" in refused.json()["error"]["message"]


def test_a_database_that_does_not_answer_is_told_at_the_start() -> None:
    database = f"postgresql://user:secret@127.0.0.1:{free_port()}/jobs"
    with pytest.raises(ConfigError, match="database cannot be used") as refused:
        create_app(Settings(database=database))
    assert "secret" not in str(refused.value)
