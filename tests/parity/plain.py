# SPDX-License-Identifier: Apache-2.0
"""What plain diffusers returns. Nothing of triton_diffusers is used here."""

from __future__ import annotations

import inspect
import json
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.fresh import call_fresh
from tests.parity.plain_outputs import read_output


@dataclass(frozen=True)
class PlainCall:
    """One call of a pipeline as a user of diffusers would write it.

    seeds: one makes one generator, several a list of them. scheduler: a class to rebuild the
    scheduler with, and what to change in its config.
    """

    folder: Path
    inputs: dict[str, Any]
    seeds: tuple[int, ...] = (7,)
    pipeline_class: str | None = None
    load_kwargs: dict[str, Any] = field(default_factory=dict)
    scheduler: tuple[str, dict[str, Any]] | None = None
    threads: int = 1


@dataclass(frozen=True)
class PlainResult:
    """Every field of the output that is not None, as the wire should carry it."""

    arrays: dict[str, np.ndarray]
    seconds: float


def run_plain(call: PlainCall, timeout_s: float = 300) -> PlainResult:
    """Load and call a pipeline in a fresh process. Raises ChildError with what it raised."""
    result: PlainResult = call_fresh(_run, call, timeout_s=timeout_s)
    return result


def class_of(folder: Path) -> str:
    """Return the pipeline class that a folder's model_index.json names."""
    named = json.loads((folder / "model_index.json").read_text())["_class_name"]
    return str(named[-1] if isinstance(named, list) else named)


def _run(call: PlainCall) -> PlainResult:
    import diffusers
    import torch

    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    torch.set_num_threads(call.threads)
    cls = getattr(diffusers, call.pipeline_class or "DiffusionPipeline")
    pipeline = cls.from_pretrained(call.folder, dtype=torch.float32, **call.load_kwargs)
    pipeline.set_progress_bar_config(disable=True)
    if call.scheduler is not None:
        name, changes = call.scheduler
        made = getattr(diffusers, name).from_config(pipeline.scheduler.config, **changes)
        pipeline.scheduler = made
    arguments = {name: _as_tensor(value) for name, value in call.inputs.items()}
    torch.manual_seed(call.seeds[0])
    arguments |= _chosen(inspect.signature(type(pipeline).__call__).parameters, call.seeds)
    started = time.perf_counter()
    output = pipeline(**arguments)
    return PlainResult(read_output(output), time.perf_counter() - started)


def _chosen(parameters: Any, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Return what a user adds who wants a certain picture, and a picture rather than latents."""
    import torch

    added: dict[str, Any] = {}
    if "generator" in parameters:
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        added["generator"] = generators[0] if len(generators) == 1 else generators
    if "seed" in parameters:
        added["seed"] = seeds[0]
    if "output_type" in parameters and parameters["output_type"].default == "latent":
        added["output_type"] = "pil"
    return added


def _as_tensor(value: Any) -> Any:
    """Sound is an array for the client and a tensor for the pipelines."""
    import torch

    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
