#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of this project. Each prints medians and ratios taken in one run.

python scripts/bench.py startup     builder serve against importing and loading alone
python scripts/bench.py overhead    a round trip less the pipeline's own time, against a trivial
                                    Triton model that returns an array of the same size
python scripts/bench.py load        time and memory against plain from_pretrained()
python scripts/bench.py throughput  pictures a second with 8 callers: diffusers alone, one call
                                    with 8 prompts, an entry, an entry with step batching
python scripts/bench.py unload      the server's memory over rounds of loading and unloading
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.bench_load import bench_load, bench_unload  # noqa: E402
from scripts.bench_throughput import bench_throughput  # noqa: E402

BUILDER = [sys.executable, "-m", "builder.main"]
FLOOR_CONFIG = """name: "floor"
backend: "python"
max_batch_size: 0
input [
  { name: "what" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "as_mp4" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "images" data_type: TYPE_UINT8 dims: [ -1, -1, -1, -1 ] },
  { name: "frames" data_type: TYPE_UINT8 dims: [ -1, -1, -1, -1, -1 ] },
  { name: "media" data_type: TYPE_STRING dims: [ -1 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""
LOAD_ALONE = """
import sys
from diffusers import DiffusionPipeline
import diffusers, json, pathlib
name = json.loads((pathlib.Path(sys.argv[1]) / "model_index.json").read_text())["_class_name"]
getattr(diffusers, name).from_pretrained(sys.argv[1])
"""
IMAGE_CALL = {"prompt": "seven", "height": 512, "width": 512, "num_inference_steps": 1}
VIDEO_CALL = {
    "prompt": "a kite",
    "height": 704,
    "width": 1280,
    "num_frames": 25,
    "num_inference_steps": 1,
    "guidance_scale": 1.0,
    "max_sequence_length": 32,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    throughput.add_argument("--pictures", type=int, default=48, help="of each way and turn")
    throughput.add_argument("--repeat", type=int, default=3)
    throughput.add_argument("--json", action="store_true", help="print the ratios as JSON, last")
    throughput.set_defaults(run=bench_throughput)
    unload = commands.add_parser("unload", help="memory that a server keeps after unloading")
    unload.add_argument("--model", default="demo", help="entry of model_repository")
    unload.add_argument("--rounds", type=int, default=20)
    unload.add_argument("--warm", type=int, default=3, help="rounds before, at least 2")
    unload.set_defaults(run=bench_unload)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return int(args.run(args))


# startup


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
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORT_KINDS]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


# overhead


def bench_overhead(args: argparse.Namespace) -> int:
    from builder.tritonserver import start_server
    from triton_diffusers.client import DiffusersClient

    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        write_entries(repository, Path(folder))
        with start_server(repository, ("image", "video"), log=Path(folder) / "log") as server:
            url = server.grpc_url

            def open_client(model: str) -> Any:
                return DiffusersClient(url, model=model)

            with open_client("image") as image, open_client("video") as video:
                keep_results(repository / "floor", image, video)
                server.load("floor")
                with open_client("floor") as floor:
                    return compare(args, image, video, floor)


def write_entries(repository: Path, folder: Path) -> None:
    """Write two real pipelines, quick for the size of what they return, and the floor."""
    demo = ROOT / "model_repository" / "demo" / "pipeline"
    for name, model in (("image", demo), ("video", save_video_pipeline(folder / "ltx"))):
        command = [*BUILDER, "add-model", str(model), "--name", name, "--repository"]
        subprocess.run([*command, str(repository)], check=True, timeout=300, capture_output=True)
    floor = repository / "floor"
    (floor / "1").mkdir(parents=True)
    (floor / "config.pbtxt").write_text(FLOOR_CONFIG)
    shutil.copy(Path(__file__).with_name("floor_model.py"), floor / "1" / "model.py")


def save_video_pipeline(folder: Path) -> Path:
    """LTX with an autoencoder of its real compression (32 x 32 x 8), so that 64 MB come quickly."""
    from diffusers import AutoencoderKLLTXVideo, LTXPipeline

    from tests.tiny import TINY
    from tests.tiny.weights import build_model

    parts = TINY["ltx"].build().components
    scaling = (True, True, True, False)
    parts["vae"] = build_model(
        AutoencoderKLLTXVideo,
        111,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=scaling,
        decoder_spatio_temporal_scaling=scaling,
    )
    LTXPipeline(**parts).save_pretrained(folder)
    return folder


def keep_results(floor: Path, image: Any, video: Any) -> None:
    """Give the floor the very arrays that the pipelines return; warms both up."""
    np.save(floor / "images.npy", image.generate(**IMAGE_CALL, seed=1).arrays["images"])
    result = video.generate(**VIDEO_CALL, seed=1)
    np.save(floor / "frames.npy", result.arrays["frames"])
    (floor / "fps.json").write_text(json.dumps(round(result.info["fps"])))


def compare(args: argparse.Namespace, image: Any, video: Any, floor: Any) -> int:
    failed = 0
    ours, theirs = alternate(
        args.images,
        lambda: less_pipeline(image, **IMAGE_CALL, seed=1),
        lambda: round_trip(floor, what="images"),
    )
    failed += verdict(
        "image 512x512, gRPC: above the floor",
        (ours - theirs) * 1e3,
        3.0,
        f"ms, limit 3 ms (ours {ours * 1e3:.2f}, floor {theirs * 1e3:.2f})",
    )
    for name, how, limit in (
        ("gRPC", {"shared_memory": False}, 1.25),
        ("system shared memory", {"shared_memory": True, "shared_memory_bytes": 80 << 20}, 1.25),
        ("as MP4", {"output_format": "mp4", "shared_memory": False}, 1.25),
    ):
        floor_how = {**how, "what": "frames", "as_mp4": how.get("output_format") == "mp4"}
        floor_how.pop("output_format", None)
        ours, theirs = alternate(
            args.videos,
            lambda how=how: less_pipeline(video, **VIDEO_CALL, seed=1, **how),
            lambda how=floor_how: round_trip(floor, **how),
        )
        failed += verdict(
            f"video 64 MB, {name}: times the floor",
            ours / theirs,
            limit,
            f", limit {limit} (ours {ours * 1e3:.1f} ms, floor {theirs * 1e3:.1f} ms)",
        )
    return min(failed, 1)


def alternate(
    count: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float]:
    """Return the medians of both, measured in turns after one call each to warm up."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(count)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def round_trip(client: Any, **inputs: Any) -> float:
    return timed(lambda: client.generate(**inputs))


def less_pipeline(client: Any, **inputs: Any) -> float:
    started = time.perf_counter()
    result = client.generate(**inputs)
    return time.perf_counter() - started - float(result.info["seconds"]["pipeline"])


# printing


def timed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def verdict(what: str, value: float, limit: float, text: str) -> int:
    print(
        f"{'holds      ' if value <= limit else 'NOT REACHED'}  {what}: {value:.2f} {text}",
        flush=True,
    )
    return int(value > limit)


if __name__ == "__main__":
    sys.exit(main())
