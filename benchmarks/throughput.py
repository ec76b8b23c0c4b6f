# SPDX-License-Identifier: Apache-2.0
"""`throughput`: pictures a second of the demo model, in turns, with many callers."""

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.callers import Target, mean_and_p95, steady_rate
from benchmarks.entries import BATCH, add_entries, variants
from benchmarks.report import goal, print_json, say, say_conditions
from benchmarks.servers import Rival, available
from benchmarks.work import EQUAL, MIXED, Work
from benchmarks.worker import Worker, cpu_s

CLIENTS = 8
WARM = 2 * CLIENTS
MEAN_STEPS = {EQUAL: 20, MIXED: 24}
RATIOS = (
    *((way, "plain") for way in ("serial", "fastapi", "litserve", "limit")),
    *((way, "plain") for way in ("request_batching", "step_batching")),
    *((way, "limit") for way in ("litserve", "request_batching", "step_batching")),
    *((way, "litserve") for way in ("request_batching", "step_batching")),
    ("serial", "fastapi"),
)
"""Of pictures a second with equal steps."""
MIXED_RATIOS = (
    *((way, "litserve") for way in ("serial", "request_batching", "step_batching")),
    ("step_batching", "request_batching"),
    ("step_batching", "serial"),
)
"""Of pictures a second, mean and 95th percentile of latency with mixed steps."""
GOALS = {
    "serial_vs_plain": 0.97,
    "request_batching_vs_limit": 0.85,
    "step_batching_vs_limit": 0.85,
    "request_batching_vs_plain": 2.5,
    "step_batching_vs_plain": 2.5,
    "step_batching_vs_litserve_mixed": 2.0,
}
Measured = dict[str, list[float]]


def bench_throughput(args: argparse.Namespace) -> int:
    """Compare a plain loop, one call with 8 prompts, other servers, and our kinds of entry."""
    from builder.tritonserver.server import start_server

    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    say_conditions(args.threads)
    names = variants()
    kinds = [kind for kind in ("fastapi", "litserve") if available(kind)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        add_entries(folder / "repository", names)
        plain = stack.enter_context(Worker("benchmarks.plain", folder / "plain"))
        callers = stack.enter_context(Worker("benchmarks.callers", folder / "callers"))
        rivals = {
            kind: stack.enter_context(Rival(kind, folder / kind, args.batch_timeout))
            for kind in kinds
        }
        server = start_server(folder / "repository", names, log=folder / "log")
        stack.enter_context(server)
        targets = {name: {"url": server.grpc_url, "entry": name} for name in names}
        measured = Turns(args, plain, callers, rivals, targets, server.pid).measure()
    tell(measured)
    found = ratios(measured)
    for name, least in GOALS.items():
        if name in found:
            goal(name, found[name], least)
    if os.getloadavg()[1] > (os.cpu_count() or 1):
        say("the machine was busy: rates by processor time (_cpu) tell more than the others")
    if args.json:
        busy = dict(
            zip(("load_average_1_min", "load_average_5_min"), os.getloadavg(), strict=False)
        )
        print_json({**found, **medians(measured), "threads": args.threads, **busy})
    return 0


class Turns:
    """Measures every way once a round, so that what else the machine does touches all alike."""

    def __init__(
        self,
        args: argparse.Namespace,
        plain: Worker,
        callers: Worker,
        rivals: dict[str, Rival],
        targets: dict[str, Target],
        server_pid: int,
    ) -> None:
        self.args = args
        self.plain = plain
        self.callers = callers
        self.rivals = rivals
        self.targets = targets
        self.groups = {
            **{name: rival.pid for name, rival in rivals.items()},
            **dict.fromkeys(targets, server_pid),  # entries that wait use no processor
            **dict.fromkeys(("plain", "limit"), plain.pid),
        }
        self.served = [*rivals, *targets]
        self.mixed = [name for name in self.served if name != "fastapi"]

    def measure(self) -> Measured:
        """Return what each round found, by "WAY", "WAY_cpu", "WAY_mixed", "WAY_mixed_mean" ..."""
        for name in self.served:
            for work in (EQUAL, MIXED):
                self.moments(name, WARM, work)
        self.alone(WARM, 1), self.alone(WARM, BATCH)
        measured: Measured = {}
        for number in range(1, self.args.repeat + 1):
            for name, value in self.round(number).items():
                measured.setdefault(name, []).append(value)
            say(f"round {number} of {self.args.repeat} done")
        return measured

    def round(self, number: int) -> dict[str, float]:
        equal, mixed = replace(EQUAL, draw=number), replace(MIXED, draw=number)
        ways: dict[str, Callable[[], float]] = {
            "plain": lambda: self.alone(self.args.pictures, 1),
            "limit": lambda: self.alone(self.args.pictures, BATCH),
            **{name: lambda name=name: self.rate(name, equal) for name in self.served},
            **{f"{n}_mixed": lambda name=n: self.rate(name, mixed) for n in self.mixed},
        }
        found: dict[str, float] = {}
        extra = dict.fromkeys(("plain", "limit"), 0)
        for name in list(ways) if number % 2 else list(reversed(ways)):
            group = self.groups[name.removesuffix("_mixed")]
            before = cpu_s(group)
            found[name] = ways[name]()
            pictures = self.args.pictures + extra.get(name, 2 * CLIENTS)
            found[f"{name}_cpu"] = pictures / (cpu_s(group) - before)
        per_s = self.args.load * found["plain"] * MEAN_STEPS[EQUAL] / MEAN_STEPS[MIXED]
        for name in self.mixed:
            with self.awake(name) as target:
                arguments = {"target": target, "per_s": per_s, "total": self.args.pictures}
                latencies = self.callers.ask("arrivals", work=vars(mixed), **arguments)
            found[f"{name}_mixed_mean"], found[f"{name}_mixed_p95"] = mean_and_p95(latencies)
        return {**found, "arrivals": per_s}

    def alone(self, count: int, batch: int) -> float:
        return float(self.plain.ask("loop", count=count, batch=batch, fields=vars(EQUAL)))

    def rate(self, name: str, work: Work) -> float:
        return steady_rate(self.moments(name, self.args.pictures + 2 * CLIENTS, work), CLIENTS)

    def moments(self, name: str, total: int, work: Work) -> list[float]:
        with self.awake(name) as target:
            arguments = {"target": target, "clients": CLIENTS, "total": total}
            return list(self.callers.ask("closed_loop", work=vars(work), **arguments))

    @contextmanager
    def awake(self, name: str) -> Any:
        """Let a server run while it is measured; ours wait without doing anything."""
        if name not in self.rivals:
            yield self.targets[name]
            return
        rival = self.rivals[name]
        with rival.running():
            yield {"url": f"127.0.0.1:{rival.port}", "path": rival.path}


def ratio(measured: Measured, one: str, other: str) -> float:
    """Return the median of the ratios of each round: what slows a whole round drops out."""
    return statistics.median(a / b for a, b in zip(measured[one], measured[other], strict=True))


def ratios(measured: Measured) -> dict[str, float]:
    """Return A_vs_B: A divided by B. Of a latency (mean, p95), less is better."""
    found = {}
    mixed = ("_mixed", "_mixed_cpu", "_mixed_mean", "_mixed_p95")
    for pairs, kinds in ((RATIOS, ("", "_cpu")), (MIXED_RATIOS, mixed)):
        for (a, b), what in itertools.product(pairs, kinds):
            if {a + what, b + what} <= measured.keys():
                found[f"{a}_vs_{b}{what}"] = ratio(measured, a + what, b + what)
    return found


UNITS = {"mean": "_s", "p95": "_s", "cpu": "_per_cpu_s"}


def medians(measured: Measured) -> dict[str, float]:
    """Return the medians themselves, named with their units."""
    found = {}
    for name, values in measured.items():
        way, _, what = name.rpartition("_")
        unit = UNITS.get(what, "_per_s")
        found[(way if what == "cpu" else name) + unit] = statistics.median(values)
    return found


def tell(measured: Measured) -> None:
    found = {name: statistics.median(values) for name, values in measured.items()}
    ways = [name.removesuffix("_cpu") for name in found if name.endswith("_cpu")]
    say(f"{CLIENTS} callers, 20 steps (limit: one call with {BATCH} prompts): pictures/s, and")
    say("pictures per second of the server's processor time, less swayed by other programs")
    for name in [n for n in ways if not n.endswith("_mixed")]:
        cpu = ratio(measured, f"{name}_cpu", "plain_cpu")
        say(
            f"  {name:18} {found[name]:6.2f}, {ratio(measured, name, 'plain'):.2f} x plain   "
            f"{found[f'{name}_cpu']:6.2f}, {cpu:.2f} x plain"
        )
    say("8 to 40 steps: the same with 8 callers; latency with random arrivals (Poisson,")
    say(f"{found['arrivals']:.2f} a second)")
    for name in [n for n in ways if n.endswith("_mixed")]:
        mean, p95 = found[f"{name}_mean"], found[f"{name}_p95"]
        say(
            f"  {name.removesuffix('_mixed'):18} {found[name]:6.2f}   {found[f'{name}_cpu']:6.2f}"
            f"   mean {mean:.2f} s, p95 {p95:.2f} s"
        )
