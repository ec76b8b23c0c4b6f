# SPDX-License-Identifier: Apache-2.0
"""Entries of the demo model that answer one call at a time, in batches, or step by step."""

import subprocess
from pathlib import Path

from benchmarks.work import BUILDER, DEMO

BATCH = 8
"""Most requests that an entry runs at once; as many as the callers of `throughput`."""
OPTIONS = {
    "serial": (),
    "request_batching": ("--request-batching", "--max-batch", str(BATCH)),
    "step_batching": ("--step-batching", "--max-in-flight", str(BATCH)),
}


def variants() -> list[str]:
    """Return the kinds of entry that this version can be told to be; say which it cannot."""
    from triton_diffusers.config.options import options

    known = {"serial", *(option.name for option in options())}
    for name in OPTIONS:
        if name not in known:
            print(f"{name} left out: this version has no such option")
    return [name for name in OPTIONS if name in known]


def add_entries(repository: Path, names: list[str]) -> None:
    for name in names:
        command = [*BUILDER, "add-model", str(DEMO), "--name", name]
        command += ["--repository", str(repository), *OPTIONS[name]]
        done = subprocess.run(command, timeout=300, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the entry {name} was not written: {done.stderr[-2000:]}")
