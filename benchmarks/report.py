# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks print: readable lines, goals, and one line of JSON at the end."""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any


def verdict(what: str, value: float, limit: float, text: str) -> int:
    """Say whether a value is at most its limit; return 1 when it is not."""
    print(
        f"{'holds      ' if value <= limit else 'NOT REACHED'}  {what}: {value:.2f} {text}",
        flush=True,
    )
    return int(value > limit)


def goal(what: str, value: float, least: float) -> None:
    """Say whether a ratio is at least its goal."""
    print(
        f"{'holds      ' if value >= least else 'NOT REACHED'}  {what}: {value:.2f}, goal {least}",
        flush=True,
    )


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def timed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def say(text: str) -> None:
    print(text, flush=True)


def say_conditions(threads: int) -> None:
    """Say what makes a run comparable with another one."""
    say(
        f"OMP_NUM_THREADS={threads} in every process; {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f} before the run"
    )


def print_json(found: Mapping[str, float]) -> None:
    print(json.dumps({name: round(value, 4) for name, value in found.items()}), flush=True)
