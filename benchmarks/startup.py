# SPDX-License-Identifier: Apache-2.0
"""`startup`: how long until an entry is ready."""

import argparse
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import spread, timed, verdict
from benchmarks.work import BUILDER, ROOT

LOAD_ALONE = """
import sys
from diffusers import DiffusionPipeline
import diffusers, json, pathlib
name = json.loads((pathlib.Path(sys.argv[1]) / "model_index.json").read_text())["_class_name"]
getattr(diffusers, name).from_pretrained(sys.argv[1])
"""


def bench_startup(args: argparse.Namespace) -> int:
    """Alternate both, so that what else the machine does touches them alike."""
    folder = ROOT / "model_repository" / args.model / "pipeline"
    alone, served = [], []
    for _ in range(args.repeat):
        alone.append(timed(lambda: load_alone(folder)))
        served.append(serve_until_ready(args.model))
    a, s = statistics.median(alone), statistics.median(served)
    print(f"import and from_pretrained() alone  {a:6.2f} s   (of {args.repeat}: {spread(alone)})")
    print(f"builder serve {args.model} until ready      {s:6.2f} s   ({spread(served)})")
    limit = 1.3 * a + 3
    return verdict("startup", s, limit, f"s, limit 1.3 x {a:.2f} + 3 = {limit:.2f} s")


def load_alone(folder: Path) -> None:
    command = [sys.executable, "-c", LOAD_ALONE, str(folder)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)


def serve_until_ready(model: str) -> float:
    """Return the seconds from starting the command to its line that says ready."""
    ports = [f"--{kind}-port={port}" for kind, port in zip(PORT_KINDS, free_ports(), strict=True)]
    command = [*BUILDER, "serve", model, "--repository", str(ROOT / "model_repository"), *ports]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "ready" in line:
                return time.perf_counter() - started
        raise SystemExit(f"builder serve ended with {process.wait(60)} before it was ready")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


PORT_KINDS = ("http", "grpc", "metrics")


def free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORT_KINDS]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
