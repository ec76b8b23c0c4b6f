# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of this project. Each prints medians and ratios taken in one run.

python -m benchmarks startup     builder serve against importing and loading alone
python -m benchmarks overhead    a round trip less the pipeline's own time, against a trivial
                                  Triton model that returns an array of the same size
python -m benchmarks load        time and memory against plain from_pretrained()
python -m benchmarks throughput  pictures a second with 8 callers: diffusers alone, one call
                                  with 8 prompts, FastAPI, LitServe, and entries without and
                                  with request batching and step batching; latency as well
python -m benchmarks clients     pictures a second and memory with 1 to 32 callers
python -m benchmarks soak        memory of the model's process over thousands of requests
python -m benchmarks unload      the server's memory over rounds of loading and unloading
python -m benchmarks gateway     what the gateway adds to a call, in turns with gRPC; its memory
                                  and answers while 256 connections ask at once

`throughput` compares with packages of `pip install triton-diffusers[bench]`; without them it
leaves those servers out. A_vs_B in its JSON is A divided by B, also of latencies. `gateway` needs
`triton-diffusers[gateway]`.
"""

import argparse
import os
import signal
import sys

from benchmarks.gateway import bench_gateway
from benchmarks.growth import CALLERS, bench_clients, bench_soak
from benchmarks.load import bench_load, bench_unload
from benchmarks.overhead import bench_overhead
from benchmarks.startup import bench_startup
from benchmarks.throughput import bench_throughput


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    startup = commands.add_parser("startup", help="how long until the demo model is ready")
    startup.add_argument("--model", default="demo", help="entry of model_repository")
    startup.add_argument("--repeat", type=int, default=5)
    startup.set_defaults(run=bench_startup)
    overhead = commands.add_parser("overhead", help="what serving adds to a pipeline call")
    overhead.add_argument("--images", type=int, default=60, help="image calls of each kind")
    overhead.add_argument("--videos", type=int, default=7, help="video calls of each kind")
    overhead.set_defaults(run=bench_overhead)
    load = commands.add_parser("load", help="a random pipeline of several shards")
    load.add_argument("--gib", type=float, default=4.0, help="size of its weights once loaded")
    load.add_argument("--repeat", type=int, default=5)
    load.set_defaults(run=bench_load)
    throughput = commands.add_parser("throughput", help="pictures a second with many callers")
    throughput.add_argument("--pictures", type=int, default=32, help="of each way and round")
    throughput.add_argument("--repeat", type=int, default=5, help="rounds")
    throughput.add_argument(
        "--load", type=float, default=0.9, help="random arrivals: share of what diffusers alone can"
    )
    throughput.add_argument(
        "--batch-timeout", type=float, default=0.05, help="seconds that LitServe waits for a batch"
    )
    throughput.set_defaults(run=bench_throughput)
    clients = commands.add_parser("clients", help="pictures a second and memory as callers grow")
    clients.add_argument("--pictures", type=int, default=24, help="of each kind and number")
    clients.add_argument("--callers", type=int, nargs="+", default=CALLERS)
    clients.set_defaults(run=bench_clients)
    soak = commands.add_parser("soak", help="memory over thousands of small requests")
    soak.add_argument("--requests", type=int, default=5000)
    soak.add_argument("--warm", type=int, default=500, help="requests before memory is taken")
    soak.add_argument("--callers", type=int, default=8)
    soak.set_defaults(run=bench_soak)
    for command in (clients, soak):
        command.add_argument("--entries", nargs="+", help="serial, request_batching, step_batching")
    for command in (throughput, clients, soak):
        command.add_argument("--threads", type=int, default=1, help="of PyTorch in every process")
        command.add_argument("--json", action="store_true", help="print the numbers as JSON, last")
    unload = commands.add_parser("unload", help="memory that a server keeps after unloading")
    unload.add_argument("--model", default="demo", help="entry of model_repository")
    unload.add_argument("--rounds", type=int, default=20)
    unload.add_argument("--warm", type=int, default=3, help="rounds before, at least 2")
    unload.set_defaults(run=bench_unload)
    gateway = commands.add_parser("gateway", help="latency and many connections of the gateway")
    gateway.add_argument("--calls", type=int, default=200, help="of each way")
    gateway.add_argument("--connections", type=int, default=256)
    gateway.add_argument("--requests", type=int, default=4, help="of each connection")
    gateway.add_argument("--json", action="store_true", help="print the numbers as JSON, last")
    gateway.set_defaults(run=bench_gateway)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended too
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
