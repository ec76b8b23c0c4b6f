# SPDX-License-Identifier: Apache-2.0
"""Callers of a server, in a process of their own: as many at a time, or arriving by chance.

Run as a module it is a child of worker.py. A target is {"url": HOST:PORT} with the "entry"
of a tritonserver (gRPC) or the "path" of another server (HTTP). All get a PNG file back.
"""

import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from benchmarks.work import DEFAULTS, PNG, Request, Work

CALL_TIMEOUT_S = 600.0

Target = dict[str, str]
Call = Callable[[Request], None]


def closed_loop(target: Target, clients: int, total: int, work: dict[str, Any]) -> list[float]:
    """Let callers ask again as soon as they are answered; return the moment of every answer."""
    requests = islice(Work.read(work).requests(), total)
    guard = threading.Lock()
    moments: list[float] = []

    def caller() -> None:
        with open_target(target) as call:
            while True:
                with guard:
                    request = next(requests, None)
                if request is None:
                    return
                call(request)
                moments.append(time.perf_counter())

    join(start([caller] * clients))
    if len(moments) != total:
        raise RuntimeError(f"{len(moments)} of {total} requests were answered; see above")
    return sorted(moments)


def arrivals(target: Target, per_s: float, total: int, work: dict[str, Any]) -> list[float]:
    """Send requests at random moments (Poisson); return how long each took, from its moment on."""
    draw = random.Random(Work.read(work).draw)
    latencies: list[float] = []
    threads = []
    with shared_target(target) as call:
        at = time.perf_counter() + 0.1
        for request in islice(Work.read(work).requests(), total):
            at += draw.expovariate(per_s)

            def caller(request: Request = request, at: float = at) -> None:
                call(request)
                latencies.append(time.perf_counter() - at)

            time.sleep(max(0.0, at - time.perf_counter()))
            threads += start([caller])
        join(threads)
    if len(latencies) != total:
        raise RuntimeError(f"{len(latencies)} of {total} requests were answered; see above")
    return latencies


def start(callers: list[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=caller, daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    """Wait for callers: the time-out of their calls ends each of them."""
    for thread in threads:
        thread.join()


@contextmanager
def open_target(target: Target) -> Iterator[Call]:
    """Open a connection that one caller keeps."""
    if "entry" in target:
        with open_triton(target) as call:
            yield call
        return
    connection = http.client.HTTPConnection(target["url"], timeout=CALL_TIMEOUT_S)
    try:
        yield lambda request: post(connection, target["path"], request)
    finally:
        connection.close()


@contextmanager
def shared_target(target: Target) -> Iterator[Call]:
    """Return what callers of one request each use: gRPC is shared, HTTP is connected each time."""
    if "entry" in target:
        with open_triton(target) as call:
            yield call
        return

    def once(request: Request) -> None:
        with open_target(target) as call:
            call(request)

    yield once


@contextmanager
def open_triton(target: Target) -> Iterator[Call]:
    from triton_diffusers.client import DiffusersClient

    def call(request: Request) -> None:
        result = client.generate(
            timeout_s=CALL_TIMEOUT_S,
            prompt=request.prompt,
            negative_prompt="",
            seed=request.number,
            num_inference_steps=request.steps,
            height=request.size,
            width=request.size,
            output_format="png",
            **DEFAULTS,
        )
        check(result.arrays["media"][0])

    with DiffusersClient(target["url"], model=target["entry"]) as client:
        client.inputs()  # asked once, before anything is timed
        yield call


def post(connection: http.client.HTTPConnection, path: str, request: Request) -> None:
    body = json.dumps({"number": request.number, "steps": request.steps, "size": request.size})
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {answer[:500]!r}")
    check(answer)


def check(file: bytes) -> None:
    if not file.startswith(PNG):
        raise RuntimeError(f"no PNG file: {file[:50]!r}")


# what the answers of the functions above say


def steady_rate(moments: list[float], clients: int) -> float:
    """Return the answers a second while every caller waited for one: no start, no end."""
    window = moments[clients - 1 : len(moments) - clients]
    return (len(window) - 1) / (window[-1] - window[0])


def mean_and_p95(latencies: list[float]) -> tuple[float, float]:
    return statistics.mean(latencies), statistics.quantiles(latencies, n=20)[-1]


if __name__ == "__main__":
    from benchmarks.worker import work

    work({"closed_loop": closed_loop, "arrivals": arrivals})
