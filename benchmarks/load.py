# SPDX-License-Identifier: Apache-2.0
"""Loading a pipeline of several shards, and unloading it: `load` and `unload`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import verdict
from benchmarks.work import ROOT

MODULE = "benchmarks.load"
"""This one, as the processes that load are started."""
MIB, GIB = 2**20, 2**30
SHARD = "500MB"
HOWS = ("plain", "ours")
STORED = "bfloat16"
CASES = (("float32", os.cpu_count() or 1), ("float32", 1), ("bfloat16", os.cpu_count() or 1))
"""(dtype to load at, threads of PyTorch); weights that keep their dtype are mapped, not copied."""
FREE_BESIDE = 3 * GIB
"""Memory and disk that must be free beside what the benchmark takes."""


# load


def bench_load(args: argparse.Namespace) -> int:
    """Alternate both in fresh processes, the files in the page cache."""
    failed = 0
    for dtype, threads in CASES:
        parameters = int(args.gib * GIB) // (4 if dtype == "float32" else 2)
        with random_pipeline(parameters, STORED) as folder:
            size = f"{size_of(folder) / GIB:.2f} GiB"
            print(f"{STORED} files of {size} loaded as {dtype}, {threads} threads", flush=True)
            runs = alternate(folder, dtype, threads, args.repeat)
        plain, ours = (statistics.median(run["seconds"] for run in runs[how]) for how in HOWS)
        for how in HOWS:
            tell(how, runs[how])
        print(f"  {plain / ours:.2f} times faster (the goal is 2)", flush=True)
        limit = 1.05 * plain + 0.05  # what two runs of the same thing differ by
        failed += verdict(f"load as {dtype}", ours, limit, f"s, limit {limit:.2f} s (plain)")
        peak = max(run["peak_own"] for run in runs["ours"]) / runs["ours"][0]["weights"]
        failed += verdict(f"load as {dtype}: peak of own memory", peak, 1.1, "times the weights")
    return min(failed, 1)


def tell(how: str, runs: list[dict[str, float]]) -> None:
    """Print the medians of one way. Own memory is anonymous: mapped files can be dropped."""
    seconds = [run["seconds"] for run in runs]
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    print(
        f"  {how:5}  {median['seconds']:6.2f} s (of {len(runs)}: {min(seconds):.2f} to "
        f"{max(seconds):.2f}), {median['reading']:.2f} s of it from_pretrained(), "
        f"{median['cpu']:.2f} s of processor\n         weights {median['weights'] / MIB:.0f} MiB, "
        f"peak of own memory {median['peak_own'] / MIB:.0f} MiB, with mapped files "
        f"{median['peak_all'] / MIB:.0f} MiB",
        flush=True,
    )


def alternate(
    folder: Path, dtype: str, threads: int, repeat: int
) -> dict[str, list[dict[str, float]]]:
    """Return what each process measured, after one of each kind to warm the page cache."""
    runs: dict[str, list[dict[str, float]]] = {how: [] for how in HOWS}
    for number in range(repeat + 1):
        for how in HOWS if number % 2 else reversed(HOWS):
            measured = in_fresh_process(how, dtype, folder, threads)
            if number:
                runs[how].append(measured)
    return runs


def in_fresh_process(how: str, dtype: str, folder: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", MODULE, how, dtype, str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    told = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    if told.returncode:
        raise SystemExit(told.stderr[-2000:])
    return dict(json.loads(told.stdout.splitlines()[-1]))


def measure(how: str, dtype: str, folder: Path) -> dict[str, float]:
    """Load once, after the imports that a load does by itself. Runs in a process of its own."""
    from triton_diffusers.loading.load import load_pipeline
    from triton_diffusers.pipelines.classes import import_diffusers

    if how == "plain":  # imported here, and so without what our loader asks diffusers for
        import diffusers
    else:
        diffusers = import_diffusers()
    import torch

    from triton_diffusers.config.options import ServeConfig
    from triton_diffusers.pipelines.notices import quiet_loading

    cls: Any = diffusers.FluxPipeline
    import_classes(folder)
    with quiet_loading(), peaks() as found:
        if how == "plain":
            pipeline, reading = cls.from_pretrained(folder, dtype=getattr(torch, dtype)), None
        else:
            config = ServeConfig(model=str(folder), dtype=dtype)
            loaded = load_pipeline(config, folder, "cpu")
            pipeline, reading = loaded.pipeline, loaded.facts["load"]["seconds"]
    modules = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    weights = sum(p.nbytes for m in modules for p in m.parameters())
    return {**found, "reading": reading or found["seconds"], "weights": weights}


def import_classes(folder: Path) -> None:
    """Import the classes of all components: that takes both ways equally long."""
    index = json.loads((folder / "model_index.json").read_text())
    for named in index.values():
        if isinstance(named, list) and named[0]:
            getattr(__import__(named[0]), named[1])


@contextmanager
def peaks() -> Iterator[dict[str, float]]:
    """Measure the seconds and the growth of memory while the context lasts."""
    found: dict[str, float] = {}
    before, done = memory(), threading.Event()
    highest = dict(before)

    def watch() -> None:
        while not done.wait(0.005):
            highest.update({name: max(highest[name], size) for name, size in memory().items()})

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    started, cpu = time.perf_counter(), time.process_time()
    yield found
    found |= {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    done.set()
    watcher.join()
    found |= {f"peak_{name}": highest[name] - before[name] for name in before}


def memory(process: str = "self") -> dict[str, int]:
    """Return a process's bytes: its own (anonymous) and all, mapped files too."""
    rows = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    kib = {row[0]: int(row[1]) for row in rows if row[0] in ("RssAnon:", "VmRSS:")}
    return {"own": kib["RssAnon:"] << 10, "all": kib["VmRSS:"] << 10}


@contextmanager
def random_pipeline(parameters: int, dtype: str) -> Iterator[Path]:
    """Write a Flux pipeline of random weights in shards; removed afterwards."""
    from triton_diffusers.placement.host_memory import available_memory

    size = 2 * parameters
    with tempfile.TemporaryDirectory(prefix="bench-load-") as name:
        disk = os.statvfs(name)
        for what, free in (
            ("memory", available_memory()),
            (f"disk in {name}", disk.f_bavail * disk.f_frsize),
        ):
            if free < 3 * size + FREE_BESIDE:
                raise SystemExit(f"too little {what}: {free / GIB:.1f} GiB; give a smaller --gib")
        command = [sys.executable, "-m", MODULE, "save", dtype, name, str(parameters)]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        yield Path(name)


def save_pipeline(folder: Path, dtype: str, parameters: int) -> None:
    """Three quarters of the weights in the transformer, the rest in the T5 text encoder."""
    import torch
    from accelerate import init_empty_weights
    from diffusers import FluxPipeline, FluxTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    from tests.tiny import TINY

    torch.set_default_dtype(getattr(torch, dtype))
    parts = TINY["flux"].build().components
    t5_layer, flux_layer, flux_rest = 48_240_640, 141_557_760, 60_000_000
    layers = max(1, parameters // 4 // t5_layer)
    singles = max(1, (parameters * 3 // 4 - flux_rest) // flux_layer)
    t5 = T5Config(
        d_model=2048,
        d_ff=5120,
        num_layers=layers,
        num_heads=32,
        d_kv=64,
        feed_forward_proj="gated-gelu",
    )
    with init_empty_weights():
        parts["transformer"] = FluxTransformer2DModel(num_layers=0, num_single_layers=singles)
        parts["text_encoder_2"] = T5EncoderModel(t5)
    for part in ("transformer", "text_encoder_2"):
        parts[part].to_empty(device="cpu").eval().requires_grad_(False)
        for tensor in parts[part].parameters():
            tensor.uniform_(-0.05, 0.05)
    parts["text_encoder_2"].tie_weights()
    FluxPipeline(**parts).save_pretrained(folder, max_shard_size=SHARD)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


# unload


def bench_unload(args: argparse.Namespace) -> int:
    """Load and unload the demo again and again; what counts is the server's own memory."""
    from builder.tritonserver.server import start_server

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with start_server(ROOT / "model_repository", log=log) as server:
            rounds = [load_and_unload(server, args.model) for _ in range(args.warm + args.rounds)]
            left = len(server.stubs())
    failed = verdict("stubs left after the last unload", left, 0, "")
    for what, limit in (("all", 5.0), ("own", float("inf"))):
        sizes = [memory[what] / MIB for memory in rounds]
        before, after = statistics.median(sizes[args.warm - 2 :][:3]), statistics.median(sizes[-3:])
        print(f"server's {NAMES[what]}, MiB: {' '.join(f'{size:.1f}' for size in sizes)}")
        text = f"% ({before:.1f} to {after:.1f} MiB in {args.rounds} rounds), limit {limit} %"
        failed += verdict(f"growth of its {NAMES[what]}", 100 * (after / before - 1), limit, text)
    return min(1, failed)


NAMES = {"all": "resident memory", "own": "anonymous part of it"}


def load_and_unload(server: Any, model: str) -> dict[str, int]:
    """Return the bytes that the server process itself then has; its stubs are not counted."""
    server.load(model)
    server.unload(model)
    deadline = time.monotonic() + 30
    while server.stubs() and time.monotonic() < deadline:
        time.sleep(0.05)
    return memory(str(server.pid))


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save_pipeline(Path(sys.argv[3]), sys.argv[2], int(sys.argv[4]))
    else:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
