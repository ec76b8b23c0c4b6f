# SPDX-License-Identifier: Apache-2.0
"""`bench.py throughput`: pictures a second of the demo model, in turns, with many callers."""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "model_repository" / "demo" / "pipeline"
CALL = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 20,
    "max_sequence_length": 32,
    "negative_prompt": "",
    "true_cfg_scale": 2.0,
}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CLIENTS = 8


def bench_throughput(args: argparse.Namespace) -> int:
    """Compare a plain loop, one call with 8 prompts, and entries without and with step batching."""
    from builder.tritonserver import start_server

    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        add_entry(repository, "serial")
        add_entry(repository, "steps", "--step-batching", "--max-in-flight", str(CLIENTS))
        log = Path(folder) / "log"
        with start_server(repository, ("serial", "steps"), log=log) as server:
            return compare(args, server.grpc_url)


def add_entry(repository: Path, name: str, *options: str) -> None:
    command = [sys.executable, "-m", "builder.main", "add-model", str(DEMO), "--name", name]
    where = ["--repository", str(repository), "--diffusers-call-kwargs", json.dumps(CALL)]
    subprocess.run([*command, *where, *options], check=True, timeout=300, capture_output=True)


def compare(args: argparse.Namespace, url: str) -> int:
    plain = Plain()
    count = args.pictures
    ways: dict[str, Callable[[], float]] = {
        "plain": lambda: plain.loop(count),
        "limit": lambda: plain.batches(count),
        "serial": lambda: closed_loop(url, "serial", count),
        "step_batching": lambda: closed_loop(url, "steps", count),
    }
    for way in ways.values():
        way()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeat):
        for name, way in ways.items():
            rates[name].append(count / way())
    rate = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in rate.items():
        print(f"{name:14} {value:6.2f} pictures/s   ({value / rate['plain']:.2f} x plain)")
    found = {
        "serial_vs_plain": rate["serial"] / rate["plain"],
        "limit_vs_plain": rate["limit"] / rate["plain"],
        "step_batching_vs_plain": rate["step_batching"] / rate["plain"],
        "step_batching_vs_limit": rate["step_batching"] / rate["limit"],
    }
    for entry in ("serial", "steps"):
        mean, p95 = mixed(url, entry, count, 0.75 * rate["serial"])
        print(f"{entry:14} mixed steps, Poisson arrivals: mean {mean:.2f} s, p95 {p95:.2f} s")
        found |= {f"{entry}_mixed_mean_s": mean, f"{entry}_mixed_p95_s": p95}
    if args.json:
        print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    return 0


class Plain:
    """diffusers alone, in this process."""

    def __init__(self) -> None:
        from triton_diffusers.pipeline_classes import import_diffusers

        import_diffusers()
        from diffusers import FluxPipeline

        self.pipeline = FluxPipeline.from_pretrained(DEMO)
        self.pipeline.set_progress_bar_config(disable=True)

    def loop(self, count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            self.pipeline(prompt(number), generator=self.seeded(number), **CALL)
        return time.perf_counter() - started

    def batches(self, count: int) -> float:
        call = CALL | {"negative_prompt": [""] * CLIENTS}
        started = time.perf_counter()
        for first in range(0, count, CLIENTS):
            numbers = range(first, first + CLIENTS)
            generators = [self.seeded(number) for number in numbers]
            self.pipeline([prompt(n) for n in numbers], generator=generators, **call)
        return time.perf_counter() - started

    def seeded(self, number: int) -> Any:
        import torch

        return torch.Generator().manual_seed(number)


def prompt(number: int) -> str:
    return f"a handwritten {WORDS[number % 10]}"


def closed_loop(url: str, entry: str, count: int) -> float:
    """Return the seconds that `CLIENTS` callers need for `count` pictures, one after the other."""
    numbers = iter(range(count))
    guard = threading.Lock()

    def caller() -> None:
        with open_client(url, entry) as client:
            while True:
                with guard:
                    number = next(numbers, None)
                if number is None:
                    return
                client.generate(prompt=prompt(number), seed=number)

    return run_threads([caller] * CLIENTS)


def mixed(url: str, entry: str, count: int, rate: float) -> tuple[float, float]:
    """Return mean and 95th percentile of the latency of requests of 8 to 40 steps."""
    draw = random.Random(0)
    arrivals, at = [], 0.0
    for _ in range(count):
        at += draw.expovariate(rate)
        arrivals.append((at, draw.randint(8, 40)))
    latencies: list[float] = []
    started = time.perf_counter()

    def caller(number: int) -> None:
        at, steps = arrivals[number]
        with open_client(url, entry) as client:
            time.sleep(max(0.0, started + at - time.perf_counter()))
            sent = time.perf_counter()
            client.generate(prompt=prompt(number), seed=number, num_inference_steps=steps)
            latencies.append(time.perf_counter() - sent)

    run_threads([lambda number=number: caller(number) for number in range(count)])
    return statistics.mean(latencies), statistics.quantiles(latencies, n=20)[-1]


def open_client(url: str, entry: str) -> Any:
    from triton_diffusers.client import DiffusersClient

    return DiffusersClient(url, model=entry)


def run_threads(callers: list[Callable[[], None]]) -> float:
    threads = [threading.Thread(target=caller) for caller in callers]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started
