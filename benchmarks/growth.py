# SPDX-License-Identifier: Apache-2.0
"""`clients` and `soak`: what more callers, and more requests, cost an entry."""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.callers import steady_rate
from benchmarks.entries import OPTIONS, add_entries, variants
from benchmarks.load import MIB, memory
from benchmarks.report import print_json, say, say_conditions, verdict
from benchmarks.work import EQUAL, Work
from benchmarks.worker import Worker

CALLERS = (1, 2, 4, 8, 16, 32)
SMALL = Work(steps=(1, 4), sizes=(16, 32, 48, 64))
WARM = 8
"""Requests before anything is measured."""
EVERY = 500
"""Requests between two looks at the memory."""
MOST_GROWTH = 2.0
"""Percent, from the warm state to the end."""


class Served:
    """One entry on a server of its own, and its callers."""

    def __init__(self, server: Any, name: str, callers: Worker) -> None:
        self._server = server
        self._target = {"url": server.grpc_url, "entry": name}
        self._callers = callers

    def ask(self, clients: int, total: int, work: Work) -> list[float]:
        arguments = {"target": self._target, "clients": clients, "total": total}
        return list(self._callers.ask("closed_loop", work=vars(work), **arguments))

    def memory(self) -> dict[str, float]:
        """Return MiB: of the model's process (its stub), and of tritonserver beside it."""
        (stub,) = self._server.stubs()
        here = memory(str(stub.pid))
        there = memory(str(self._server.pid))
        return {
            "stub": here["all"] / MIB,
            "stub_own": here["own"] / MIB,
            "tritonserver": there["all"] / MIB,
        }


@contextmanager
def each(args: argparse.Namespace) -> Iterator[Iterator[tuple[str, Served]]]:
    """Return the kinds of entry, one after the other, each on a server started for it."""
    from builder.tritonserver.server import start_server

    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if unknown := set(args.entries or ()) - OPTIONS.keys():
        raise SystemExit(f"--entries {' '.join(unknown)}: there are {', '.join(OPTIONS)}")
    say_conditions(args.threads)
    names = [name for name in variants() if name in (args.entries or OPTIONS)]

    def turns(folder: Path, callers: Worker) -> Iterator[tuple[str, Served]]:
        add_entries(folder / "repository", names)
        for name in names:
            with start_server(folder / "repository", (name,), log=folder / name) as server:
                yield name, Served(server, name, callers)

    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Worker("benchmarks.callers", Path(folder) / "callers") as callers,
    ):
        running = turns(Path(folder), callers)
        try:
            yield running
        finally:
            running.close()  # ends the server of a turn that failed


# clients


def bench_clients(args: argparse.Namespace) -> int:
    """Let more and more callers ask; what counts is how throughput and memory grow."""
    found: dict[str, float] = {"threads": args.threads}
    with each(args) as entries:
        for name, served in entries:
            served.ask(clients=1, total=WARM, work=EQUAL)
            say(f"{name}: 20 steps, memory in MiB after each number of callers")
            for count in args.callers:
                total = max(args.pictures, count) + 2 * count
                rate = steady_rate(served.ask(count, total, EQUAL), count)
                sizes = served.memory()
                found[f"{name}_{count}_per_s"] = rate
                found |= {f"{name}_{count}_{what}_mib": mib for what, mib in sizes.items()}
                say(
                    f"  {count:3} callers  {rate:6.2f} pictures/s   model {sizes['stub']:.0f} "
                    f"(own {sizes['stub_own']:.0f}), tritonserver {sizes['tritonserver']:.0f}"
                )
            first, last = min(args.callers), max(args.callers)
            for what in ("per_s", "stub_mib"):
                few, many = (found[f"{name}_{count}_{what}"] for count in (first, last))
                found[f"{name}_{last}_vs_{first}_{what}"] = many / few
    if args.json:
        print_json(found)
    return 0


# soak


def bench_soak(args: argparse.Namespace) -> int:
    """Send thousands of small requests of all shapes; what counts is the memory they leave."""
    if not 0 < args.warm < args.requests:
        raise SystemExit(f"--warm {args.warm}: more than 0, less than --requests {args.requests}")
    found: dict[str, float] = {"requests": args.requests}
    failed = 0
    with each(args) as entries:
        for name, served in entries:
            sizes = soak(served, args)
            series = " ".join(f"{size['stub']:.1f}" for size in sizes)
            say(f"{name}: MiB of the model's process, first after {args.warm}: {series}")
            for what in ("stub", "stub_own", "tritonserver"):
                before, after = sizes[0][what], sizes[-1][what]
                growth = 100 * (after / before - 1)
                found[f"{name}_{what}_growth_percent"] = growth
                found |= {f"{name}_{what}_mib": before, f"{name}_{what}_mib_last": after}
            text = f"% in {args.requests - args.warm} requests, limit {MOST_GROWTH} %"
            growth = found[f"{name}_stub_growth_percent"]
            failed += verdict(f"growth of {name}", growth, MOST_GROWTH, text)
    if args.json:
        print_json(found)
    return min(failed, 1)


def soak(served: Served, args: argparse.Namespace) -> list[dict[str, float]]:
    """Return the memory when it is warm, then after every few hundred requests."""
    sizes = []
    left, portion = args.requests, args.warm
    while left:
        total = min(portion, left)
        work = Work(SMALL.steps, SMALL.sizes, draw=len(sizes))
        served.ask(min(args.callers, total), total, work)
        left, portion = left - total, EVERY
        samples = [served.memory() for _ in range(3)]
        sizes.append({what: statistics.median(s[what] for s in samples) for what in samples[0]})
    return sizes
