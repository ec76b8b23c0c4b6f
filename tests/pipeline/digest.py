# SPDX-License-Identifier: Apache-2.0
"""Loads pipelines in a fresh process and prints what they hold, bit by bit, as JSON.

python -m tests.pipeline.digest {plain,ours} FOLDER...
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")


def main(how: str, *folders: str) -> None:
    if how == "ours":
        os.environ["HF_ENABLE_PARALLEL_LOADING"] = "1"
    import torch
    from diffusers import DiffusionPipeline

    load = load_ours if how == "ours" else DiffusionPipeline.from_pretrained
    found: dict[str, dict[str, Any]] = {dtype: {} for dtype in DTYPES}
    for dtype, folder in product(DTYPES, folders):
        options = {"dtype": getattr(torch, dtype), "disable_mmap": "unmapped" in folder}
        found[dtype][Path(folder).name] = digest(load(folder, **options))
    print(json.dumps(found))


def load_ours(folder: str, **options: Any) -> Any:
    from diffusers import DiffusionPipeline

    from triton_diffusers.loading import progress as load_progress
    from triton_diffusers.loading.report import timed_loading

    load_progress.FIRST_S = load_progress.EVERY_S = 0.001
    lines: list[str] = []
    with timed_loading() as times, load_progress.loading_progress(lines.append):
        pipeline = DiffusionPipeline.from_pretrained(folder, **options)
    times.report(pipeline)
    assert all(line.startswith("loading ") for line in lines)
    return pipeline


def digest(pipeline: Any) -> dict[str, list[Any]]:
    """Return everything about a pipeline's tensors by their names."""
    import torch

    found: dict[str, list[Any]] = {}
    for name, part in pipeline.components.items():
        if not isinstance(part, torch.nn.Module):
            found[name] = [type(part).__name__]
            continue
        found[name] = [
            type(part).__name__,
            sorted(n for n, m in part.named_modules() if m.training),
        ]
        for kind, tensors in (
            ("parameter", part.named_parameters(remove_duplicate=False)),
            ("buffer", part.named_buffers(remove_duplicate=False)),
        ):
            for inner, tensor in tensors:
                bits = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                found[f"{name}.{inner}"] = [
                    kind,
                    type(tensor).__name__,
                    str(tensor.dtype),
                    list(tensor.shape),
                    list(tensor.stride()),
                    str(tensor.device),
                    tensor.requires_grad,
                    hashlib.sha256(bits).hexdigest(),
                ]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
