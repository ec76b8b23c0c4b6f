# SPDX-License-Identifier: Apache-2.0
"""What load-time options cost the demo model: digits that a classifier recognises, bytes, time.

Draws the same pictures with each option and prints one line for each: the digits that are named
rightly, how many pixels' values changed by more than rounding, weight bytes, and the time against
the entry without options, taken in this run. `--pictures` says how many (default: 100).
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from train_demo_model import CALL_KWARGS, PIPELINE_DIR, WORDS, read_ink, shrink, train_classifier

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.isolation import isolate
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.quantization.methods import METHODS
from triton_diffusers.quantization.weight_bytes import count_bytes

PLAIN = ServeConfig(model=str(PIPELINE_DIR), diffusers_call_kwargs=CALL_KWARGS)
BACKENDS = ("_native_math", "_native_flash", "_native_efficient", "_native_cudnn", "flex")
FIRST_SEED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pictures", type=int, default=100, metavar="N", help="(%(default)s)")
    count = parser.parse_args().pictures
    torch.set_num_threads(1)
    classifier = train_classifier()
    wanted = np.arange(count) % len(WORDS)
    table = Table("options", "digits", "changed", "weights", "time", "what was done")
    first: np.ndarray | None = None
    first_s = 0.0
    for name, config in variants():
        try:
            loaded = load_pipeline(config, PIPELINE_DIR, "cpu")
        except ConfigError as error:
            table.add_row(name, "", "", "", "", f"refused: {error}")
            continue
        started = time.perf_counter()
        pictures = draw(loaded, count)
        seconds = time.perf_counter() - started
        pixels = np.stack([np.asarray(p) for p in pictures])
        first, first_s = (pixels, seconds) if first is None else (first, first_s)
        named = classifier.predict(shrink(np.stack([read_ink(p) for p in pictures])))
        changed = float((np.abs(pixels.astype(int) - first) > 1).mean())
        table.add_row(
            name,
            f"{(named == wanted).sum()} of {count}",
            f"{changed:.1%}",
            weights(loaded),
            f"{seconds / first_s:.2f} x",
            told(loaded),
        )
    Console(width=160).print(table)


def variants() -> Iterator[tuple[str, ServeConfig]]:
    yield "none", PLAIN
    for name in METHODS:
        yield f"quantization_config {name}", replace(PLAIN, quantization_config=name)
    for name in BACKENDS:
        backend = replace(PLAIN, attention_backend=name, attention_fallback="error")
        yield f"attention_backend {name}", backend
    yield "attention_backend auto", replace(PLAIN, attention_backend="auto")
    yield "dtype bfloat16", replace(PLAIN, dtype="bfloat16")
    yield "layerwise_casting e4m3fn", replace(PLAIN, layerwise_casting="float8_e4m3fn")
    yield "channels_last", replace(PLAIN, channels_last=True)
    yield "torch_compile regional", replace(PLAIN, torch_compile="regional")


def draw(loaded: LoadedPipeline, count: int) -> list[Image.Image]:
    pictures = []
    for i in range(count):
        generator = torch.Generator().manual_seed(FIRST_SEED + i)
        pipeline = isolate(loaded.pipeline, lambda done, total: None)
        prompt = f"a handwritten {WORDS[i % len(WORDS)]}"
        pictures += pipeline(prompt, generator=generator, **CALL_KWARGS).images
    return pictures


def weights(loaded: LoadedPipeline) -> str:
    return f"{count_bytes(loaded.pipeline.transformer).after:,}"


def told(loaded: LoadedPipeline) -> str:
    backend = loaded.facts["attention_backend"]
    tried = loaded.facts.get("attention_attempts", [])
    reasons = "; ".join(f"{a['backend']}: {a['reason']}" for a in tried)
    return f"attention {backend}" + (f" ({reasons})" if reasons else "")


if __name__ == "__main__":
    main()
