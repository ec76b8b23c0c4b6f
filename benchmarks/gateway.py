# SPDX-License-Identifier: Apache-2.0
"""`gateway`: what the gateway adds to a call, and how it holds many connections."""

import argparse
import asyncio
import base64
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.load import MIB, memory
from benchmarks.report import print_json, say, say_conditions, spread, verdict
from benchmarks.work import BUILDER, DEMO, PNG
from scripts.gateway_process import Gateway, run_gateway

PATH = "/v1/images/generations"
ENTRY = "gateway-demo"
CALL = {"prompt": "a handwritten seven", "seed": 7, "num_inference_steps": 2}
SHORT = {"prompt": "a handwritten seven", "seed": 7, "num_inference_steps": 1}
OPTIONS = ["--max-queue", "4096", "--diffusers-call-kwargs", '{"height": 64, "width": 64}']
WARM = 20
MOST_ADDED_MS = 8.0
MOST_MEMORY_MIB = 64.0
"""What the gateway may grow by while all connections wait: a quarter of a MiB for each of 256."""
CALL_TIMEOUT_S = 600.0


def bench_gateway(args: argparse.Namespace) -> int:
    from builder.tritonserver.server import start_server

    os.environ["OMP_NUM_THREADS"] = "1"
    say_conditions(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_entry(folder / "repository")
        with (
            start_server(folder / "repository", [ENTRY], log=folder / "log") as server,
            run_gateway(server.grpc_url, folder, "--port", "0") as gateway,
        ):
            found = asyncio.run(measure_added(args.calls, server.grpc_url, gateway.url))
            found |= asyncio.run(measure_many(args.connections, args.requests, gateway))
    failed = report(args, found)
    if args.json:
        print_json(found)
    return failed


def write_entry(repository: Path) -> None:
    """Write the demo model with a queue for all connections: the gateway is what is measured."""
    model = str(DEMO)
    command = [*BUILDER, "add-model", model, "--name", ENTRY, "--repository", str(repository)]
    subprocess.run([*command, *OPTIONS], check=True, timeout=300, capture_output=True)


async def measure_added(calls: int, triton: str, gateway: str) -> dict[str, float]:
    """Take the same call in turns through gRPC and through the gateway; return medians in ms."""
    import aiohttp

    from triton_diffusers.client import AsyncDiffusersClient

    async with AsyncDiffusersClient(triton, ENTRY) as client, aiohttp.ClientSession() as session:
        direct, through = [], []
        for number in range(WARM + calls):
            started = time.perf_counter()
            plain = (await client.generate(**CALL, output_format="png")).media[0]
            between = time.perf_counter()
            file = await ask(session, gateway, CALL)
            ended = time.perf_counter()
            if file != plain:
                raise RuntimeError("the gateway's picture is another one")
            if number >= WARM:
                direct.append(1e3 * (between - started))
                through.append(1e3 * (ended - between))
    added = [b - a for a, b in zip(direct, through, strict=True)]
    say(f"gRPC         {statistics.median(direct):7.2f} ms   ({spread(direct)})")
    say(f"gateway      {statistics.median(through):7.2f} ms   ({spread(through)})")
    return {
        "grpc_ms": statistics.median(direct),
        "gateway_ms": statistics.median(through),
        "added_ms": statistics.median(added),
        "added_p95_ms": statistics.quantiles(added, n=20)[-1],
    }


async def ask(session: Any, gateway: str, body: dict[str, Any]) -> bytes:
    """Ask for a picture; return its file. Raises RuntimeError for any other answer."""
    async with session.post(gateway + PATH, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        file = base64.b64decode((await response.json())["data"][0]["b64_json"])
    if not file.startswith(PNG):
        raise RuntimeError(f"no PNG file: {file[:50]!r}")
    return file


async def measure_many(connections: int, requests: int, gateway: Gateway) -> dict[str, float]:
    """Let so many connections ask at once, again and again; return rate and the memory in MiB."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    errors: list[str] = []

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def caller() -> None:
            for _ in range(requests):
                try:
                    await ask(session, gateway.url, SHORT)
                except (RuntimeError, aiohttp.ClientError, asyncio.TimeoutError) as error:
                    errors.append(f"{type(error).__name__}: {error}")

        with Watch(gateway.pid) as watch:
            started = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(connections)))
            took = time.perf_counter() - started
    await asyncio.sleep(1)
    for text in dict.fromkeys(errors[:5]):
        say(f"  {text}")
    return {
        "connections": connections,
        "requests": connections * requests,
        "errors": len(errors),
        "requests_per_s": (connections * requests - len(errors)) / took,
        "open_connections": watch.most_connections,
        "memory_before_mib": watch.before / MIB,
        "memory_peak_mib": watch.peak / MIB,
        "memory_after_mib": memory(str(gateway.pid))["all"] / MIB,
    }


class Watch:
    """Looks at a process again and again: its memory, and how many connections it holds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._files = self._open_files()
        self.before = self.peak = memory(str(pid))["all"]
        self.most_connections = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, memory(str(self._pid))["all"])
            opened = self._open_files() - self._files
            self.most_connections = max(self.most_connections, opened)

    def _open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))


def report(args: argparse.Namespace, found: dict[str, float]) -> int:
    text = f"ms at the median of {args.calls} calls, limit {MOST_ADDED_MS} ms"
    failed = verdict("the gateway adds", found["added_ms"], MOST_ADDED_MS, text)
    what = f"{args.connections} connections with {args.requests} requests each"
    say(
        f"{what}: {found['requests_per_s']:.1f} requests/s, at most "
        f"{found['open_connections']:.0f} connections at once"
    )
    failed += verdict(f"{what}: errors", found["errors"], 0, "")
    before, peak, after = (found[f"memory_{when}_mib"] for when in ("before", "peak", "after"))
    text = f"MiB ({before:.0f} before, {peak:.0f} at the peak, {after:.0f} after), limit "
    failed += verdict(
        "the gateway's memory grows by", peak - before, MOST_MEMORY_MIB, f"{text}{MOST_MEMORY_MIB}"
    )
    return min(failed, 1)
