# SPDX-License-Identifier: Apache-2.0
"""`overhead`: what serving adds to a pipeline call, for large and small results."""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import timed, verdict
from benchmarks.work import BUILDER, DEMO

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


def bench_overhead(args: argparse.Namespace) -> int:
    from builder.tritonserver.server import start_server
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
    for name, model in (("image", DEMO), ("video", save_video_pipeline(folder / "ltx"))):
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
