# SPDX-License-Identifier: Apache-2.0
"""The checks that need a GPU, in one command of under four minutes; exits 0 saying "not run".

Parity with plain diffusers on the device, quantization (fp8 dynamic and the others, compiled and
not), the attention backend that is chosen and those that are not, peak memory of each placement,
compilation. Uses the demo model and a random pipeline of about 1 GB that it writes to a temporary
folder. `--device cpu` runs what a CPU can, to try the script itself.
"""

import argparse
import contextlib
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError

DEMO = Path(__file__).resolve().parent.parent / "model_repository" / "demo" / "pipeline"
SMALL = {"height": 64, "width": 64, "num_inference_steps": 4, "max_sequence_length": 32}
BUDGET_S = 220
"""Checks that have not begun by then are not begun."""


@dataclass
class Bench:
    """Where checks run, and what they share."""

    device: str
    folder: Path

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def load(self, model: Path = DEMO, **options: Any) -> Any:
        from triton_diffusers.loading.load import load_pipeline

        config = ServeConfig(model=str(model), diffusers_call_kwargs=SMALL)
        return load_pipeline(replace(config, **options), self.folder, self.device)

    def draw(self, loaded: Any) -> np.ndarray:
        """uint8 [N, H, W, 3], as an entry answers."""
        from triton_diffusers.calls.arguments import read_call
        from triton_diffusers.running.run import run_call

        inputs = {"prompt": np.array([b"a handwritten seven"], object), "seed": np.array([7])}
        wire = run_call(read_call(inputs, loaded), loaded, lambda done, total: None)
        return wire["images"]

    def seconds(self, loaded: Any, calls: int = 3) -> float:
        self.draw(loaded)
        taken = []
        for _ in range(calls):
            started = time.perf_counter()
            self.draw(loaded)
            taken.append(time.perf_counter() - started)
        return min(taken)

    def peak_gib(self, work: Callable[[], Any]) -> float:
        """Return the most device memory that was allocated while `work` ran; 0.0 on a CPU."""
        import torch

        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        work()
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.is_gpu else 0.0


def parity(bench: Bench) -> Iterator[str]:
    """What an entry answers is what plain diffusers draws on this device, bit for bit."""
    import torch
    from diffusers import FluxPipeline

    for name in ("bfloat16", "float32"):
        dtype = getattr(torch, name)
        alone = FluxPipeline.from_pretrained(DEMO, dtype=dtype).to(bench.device)
        alone.set_progress_bar_config(disable=True)
        torch.manual_seed(7)
        generator = torch.Generator().manual_seed(7)
        images = alone("a handwritten seven", generator=generator, **SMALL).images
        served = bench.draw(bench.load(dtype=name))
        same = np.array_equal(served, np.stack([np.asarray(image) for image in images]))
        yield _verdict(same, f"{name}: identical to plain diffusers")


def quantization(bench: Bench) -> Iterator[str]:
    """Each method loads, holds fewer bytes and draws nearly the same; fp8 and int8 compiled too."""
    from triton_diffusers.quantization.methods import METHODS

    model = big_model(bench)
    plain = bench.load(model, dtype="bfloat16")
    picture, plain_s = bench.draw(plain), bench.seconds(plain)
    del plain
    for method in METHODS.values():
        for mode in ("off", "regional") if method.dynamic else ("off",):
            name = f"{method.name}, torch_compile {mode}"
            try:
                options = {"quantization_config": method.name, "torch_compile": mode}
                loaded = bench.load(model, dtype="bfloat16", **options)
            except ConfigError as error:
                yield f"refused  {name}: {error}"
                continue
            held = loaded.facts["quantization"]["transformer"]
            off = np.abs(bench.draw(loaded).astype(int) - picture).mean()
            ok = held["bytes"] < held["bytes_before"] and off < 40
            yield _verdict(
                ok,
                f"{name}: {held['bytes_before'] / 2**20:.0f} -> {held['bytes'] / 2**20:.0f} MiB, "
                f"pixels off by {off:.1f} of 255, {bench.seconds(loaded) / plain_s:.2f} x the time",
            )
            del loaded


def attention(bench: Bench) -> Iterator[str]:
    """Which backend each name comes to, and why not those before it."""
    model = big_model(bench)
    plain = bench.load(model, dtype="bfloat16")
    plain_s = bench.seconds(plain)
    del plain
    for name in ("auto", "FLASH_ATTN", "SAGE_ATTN", "_native_cudnn", "_native_flash", "xformers"):
        loaded = bench.load(model, dtype="bfloat16", attention_backend=name)
        tried = loaded.facts.get("attention_attempts", [])
        reasons = "; ".join(f"{a['backend']}: {a['reason']}" for a in tried)
        ratio = bench.seconds(loaded) / plain_s
        chosen = loaded.facts["attention_backend"]
        yield f"ok       {name} -> {chosen}, {ratio:.2f} x native's time ({reasons or 'at once'})"
        del loaded


def placement(bench: Bench) -> Iterator[str]:
    """Loading and calling with each placement, and the most device memory that it took."""
    model = big_model(bench)
    options: dict[str, dict[str, Any]] = {
        "on the device": {},
        "enable_cpu_offload": {"enable_cpu_offload": True},
        "enable_group_offload block_level": {"enable_group_offload": "block_level"},
        "enable_group_offload leaf_level": {"enable_group_offload": "leaf_level"},
        "enable_layerwise_offload": {"enable_layerwise_offload": True},
        "enable_cpu_offload, fp8_weight_only": {
            "enable_cpu_offload": True,
            "quantization_config": "fp8_weight_only",
        },
        "device_map cuda": {"device_map": "cuda"},
        "device_map balanced": {"device_map": "balanced"},
    }
    whole = 0.0
    pictures: list[np.ndarray] = []
    for name, given in options.items():

        def work(given: dict[str, Any] = given) -> None:
            pictures.append(bench.draw(bench.load(model, dtype="bfloat16", **given)))

        try:
            peak = bench.peak_gib(work)
        except ConfigError as error:
            yield f"refused  {name}: {error}" if not bench.is_gpu else _verdict(False, str(error))
            continue
        whole = whole or peak
        same = np.array_equal(pictures[-1], pictures[0]) or "fp8" in name
        smaller = "offload" not in name or peak < whole or not bench.is_gpu
        drawn = "the same picture" if same else "ANOTHER picture"
        yield _verdict(same and smaller, f"{name}: peak {peak:.2f} GiB, {drawn}")


def compilation(bench: Bench) -> Iterator[str]:
    """Compiled denoisers draw nearly the same; seconds of loading, and of a call."""
    model = big_model(bench)
    plain = bench.load(model, dtype="bfloat16")
    picture, plain_s = bench.draw(plain), bench.seconds(plain)
    del plain
    for mode in ("regional", "full"):
        started = time.perf_counter()
        loaded = bench.load(model, dtype="bfloat16", torch_compile=mode, warmup="default")
        load_s = time.perf_counter() - started
        off = np.abs(bench.draw(loaded).astype(int) - picture).mean()
        ratio = bench.seconds(loaded) / plain_s
        text = (
            f"{mode}: ready after {load_s:.0f} s, pixels off by {off:.2f}, {ratio:.2f} x the time"
        )
        yield _verdict(off < 10, text)
        del loaded


def two_devices(bench: Bench) -> Iterator[str]:
    """The instance's device is the one that is used."""
    import torch

    for index in range(torch.cuda.device_count()):
        there = Bench(f"cuda:{index}", bench.folder)
        loaded = there.load()
        devices = {str(p.device) for p in loaded.pipeline.transformer.parameters()}
        yield _verdict(devices == {f"cuda:{index}"}, f"cuda:{index}: weights on {devices}")
        there.draw(loaded)


CHECKS = (parity, attention, placement, quantization, compilation, two_devices)


def big_model(bench: Bench) -> Path:
    """Write, once, a Flux pipeline with a random transformer of 0.9 GB in bfloat16."""
    import torch
    from diffusers import FluxPipeline, FluxTransformer2DModel

    path = bench.folder / "big"
    if not path.exists():
        pipeline = FluxPipeline.from_pretrained(DEMO, dtype=torch.bfloat16)
        config = dict(pipeline.transformer.config)
        sizes = {
            "num_attention_heads": 16,
            "attention_head_dim": 64,
            "axes_dims_rope": (16, 24, 24),
        }
        layers = {"num_layers": 6, "num_single_layers": 12} if bench.is_gpu else {"num_layers": 1}
        torch.manual_seed(0)
        made = FluxTransformer2DModel.from_config(config | sizes | layers)
        pipeline.transformer = made.to(torch.bfloat16)
        pipeline.save_pretrained(path)
    return path


def _verdict(ok: bool, text: str) -> str:
    return f"{'ok      ' if ok else 'FAILED  '} {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", help="cpu runs what a CPU can (default: cuda:0)")
    parser.add_argument("--only", choices=[c.__name__ for c in CHECKS], action="append")
    args = parser.parse_args()
    from triton_diffusers.pipelines.classes import import_diffusers

    import_diffusers()
    import torch

    checks = [c for c in CHECKS if not args.only or c.__name__ in args.only]
    if args.device is None and not torch.cuda.is_available():
        print(f"not run: torch {torch.__version__} sees no GPU. With one it would check:")
        for check in checks:
            print(f"  {check.__name__}: {check.__doc__}")
        return 0
    device = args.device or "cuda:0"
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    print(f"torch {torch.__version__}, {name}")
    started, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(device, Path(folder))
        for check in checks:
            if time.monotonic() - started > BUDGET_S:
                print(f"{check.__name__}: not begun, {BUDGET_S} s are over; use --only")
                continue
            print(f"{check.__name__}: {check.__doc__}", flush=True)
            failed += _run(check, bench)
    print(f"{failed} failed; {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _run(check: Callable[[Bench], Iterator[str]], bench: Bench) -> int:
    """Print the lines of a check as they come; return how many failed."""
    failed = 0
    lines = check(bench)
    with contextlib.closing(lines):
        while True:
            try:
                line = next(lines)
            except StopIteration:
                return failed
            except Exception as error:
                print(f"  FAILED   {type(error).__name__}: {error}", flush=True)
                return failed + 1
            failed += line.startswith("FAILED")
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
