# SPDX-License-Identifier: Apache-2.0
"""Run one call of a loaded pipeline: seeds, the call itself, its output, and what to tell of it."""

import time
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_diffusers.calls.arguments import Call
from triton_diffusers.calls.outputs import to_wire
from triton_diffusers.contract import INFO, SAMPLING_RATE, SEED_USED, Kind
from triton_diffusers.errors import CancelledError, OutOfMemoryError, one_line
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.failures import forget, is_out_of_memory
from triton_diffusers.pipelines.isolation import OnStep, isolate, restored_on_failure
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.notices import collected, tell_of_nan
from triton_diffusers.pipelines.sound import sampling_rate
from triton_diffusers.pipelines.truncation import watch_negative_prompts
from triton_diffusers.placement.devices import free_cached, peak_memory_bytes
from triton_diffusers.previews.previews import CallPreviews
from triton_diffusers.running.blame import explain
from triton_diffusers.running.info import render_info
from triton_diffusers.running.record import Record, whole_numbers
from triton_diffusers.running.step_batching import Lane


@dataclass
class Computed:
    """What a call of the pipeline gave, before it is encoded."""

    fields: dict[str, Any]
    sampling_rate: int | None
    steps: int
    seconds: dict[str, float]
    """By stage: encode_prompt, denoise, decode_latents where it drives a progress bar; pipeline."""
    notes: list[str]
    batch: int = 1
    """How many requests ran as this one call."""
    no_previews: str = ""
    """Why there were none, if they were wanted."""
    peak_memory_bytes: int = 0


class _Watched:
    """Counts the steps of a call and notes when they began and ended."""

    def __init__(self, on_step: OnStep, previews: CallPreviews) -> None:
        self.steps = 0
        self._more = (previews.pictures,) if previews.wanted else ()
        self._on_step = on_step
        self._entered_at = time.perf_counter()
        self._began_at: float | None = None
        self._last_at = 0.0

    def on_start(self) -> None:
        self._began_at = self._began_at or time.perf_counter()

    def on_step(self, done: int, total: int) -> None:
        self.steps += 1
        self._last_at = time.perf_counter()
        self._on_step(done, total, *self._more)

    def seconds(self) -> dict[str, float]:
        now = time.perf_counter()
        stages = {}
        if self._began_at is not None and self.steps:
            stages = {
                "encode_prompt": self._began_at - self._entered_at,
                "denoise": self._last_at - self._began_at,
                "decode_latents": now - self._last_at,
            }
        return stages | {"pipeline": now - self._entered_at}


def run_call(
    call: Call, loaded: LoadedPipeline, on_step: OnStep, lane: Lane | None = None
) -> dict[str, Array]:
    """Run the pipeline and return the output tensors: `compute`, then `encode`."""
    return encode(compute(call, loaded, on_step, lane), call, loaded, Record())


def compute(
    call: Call, loaded: LoadedPipeline, on_step: OnStep, lane: Lane | None = None
) -> Computed:
    """Run the pipeline.

    lane: the call's place among others that run at once.
    Raises RequestError where the pipeline's own check of its inputs refuses them, CancelledError
    from `on_step`, OutOfMemoryError; anything else is the pipeline's own exception.
    """
    previews = CallPreviews(loaded.previews, call.kwargs, bool(call.output.preview_every))
    watched = _Watched(on_step, previews)
    pipeline = isolate(loaded.pipeline, watched.on_step, watched.on_start, loaded.execution_device)
    if lane is not None:
        lane.enter(pipeline)
    kwargs = call.kwargs | _generator(call.seeds, loaded)
    if loaded.signature.output_type is not None:
        kwargs["output_type"] = loaded.signature.output_type
    notes = list(loaded.warnings)
    watch_negative_prompts(pipeline, _texts(call, loaded), notes.append)
    try:
        untouched = restored_on_failure(loaded.processors)
        with collected(notes), untouched, previews.watching(pipeline):
            result = pipeline(**kwargs)
    except Exception as error:
        failure = _failure(error, call, loaded, started=watched.steps > 0)
        # what the call held is free now, not when Python finds the cycle of error and frames
        traceback.clear_frames(error.__traceback__)
        if failure is error:
            raise
        raise failure from error
    if not any(loaded.has_worked):
        loaded.has_worked.append(True)
    rate = getattr(result, "sampling_rate", None) or sampling_rate(loaded.pipeline)
    fields = fields_of(result, loaded)
    computed = Computed(fields, rate and int(rate), watched.steps, watched.seconds(), notes)
    computed.no_previews = previews.finish(fields)
    computed.peak_memory_bytes = peak_memory_bytes(loaded.device)
    return computed


def encode(
    computed: Computed, call: Call, loaded: LoadedPipeline, record: Record
) -> dict[str, Array]:
    """Turn what a call gave into the output tensors, files where the caller wants those.

    record: knows the stages before, and takes what the call came to.
    """
    declared = dict(loaded.signature.output_fields)
    if loaded.signature.is_audio:
        declared[SAMPLING_RATE.name] = SAMPLING_RATE
    notes, rate = list(computed.notes), computed.sampling_rate
    if call.output.preview_every and computed.no_previews:
        notes.append(computed.no_previews)
    started = time.perf_counter()
    wire = to_wire(computed.fields, declared, call.output, rate, notes)
    record.seconds |= computed.seconds | {"encode_outputs": time.perf_counter() - started}
    record.steps, record.batch = computed.steps, computed.batch
    record.outputs = len(next(iter(wire.values()), ()))
    record.nan = tell_of_nan(notes)
    record.peak_memory_bytes = computed.peak_memory_bytes
    wire[SEED_USED.name] = np.array(call.seeds, np.int64)
    wire[INFO.name] = np.array([render_info(call, loaded, record, notes)], np.object_)
    return wire


def _failure(error: Exception, call: Call, loaded: LoadedPipeline, started: bool) -> Exception:
    """Return the exception that a failed call ends with: ours where we know better."""
    if isinstance(error, CancelledError):
        return error
    if is_out_of_memory(error):
        forget(error)
        free_cached(loaded.device)
        return OutOfMemoryError(_memory_text(call, loaded, error))
    return explain(error, call, loaded, started)


def _memory_text(call: Call, loaded: LoadedPipeline, error: BaseException) -> str:
    """Say what was asked for when the memory was not enough."""
    asked = whole_numbers(call.kwargs).items()
    listed = ", ".join(f"{name} {value}" for name, value in asked) or "its default size"
    of = "" if call.outputs is None else f", {call.outputs} outputs"
    return (
        f"out of memory on {loaded.device} with {listed}{of}; ask for less, or set vae_use_tiling, "
        f"an offload or quantization_config of the entry (it said: {one_line(error)[:200]})"
    )


def _generator(seeds: list[int], loaded: LoadedPipeline) -> dict[str, Any]:
    """Return the `generator` argument: one generator, or one per output.

    The global generator is seeded too: a few pipelines draw from it.
    """
    import torch

    torch.manual_seed(seeds[0])
    if "generator" not in loaded.signature.reserved:
        return {}
    device = loaded.config.generator_device
    made = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    return {"generator": made[0] if len(made) == 1 else made}


def _texts(call: Call, loaded: LoadedPipeline) -> dict[str, Any]:
    """Return the prompts of a call by parameter."""
    parameters = loaded.signature.parameters.values()
    names = [p.argument for p in parameters if p.kind is Kind.TEXT]
    return {name: call.kwargs[name] for name in names if call.kwargs.get(name) is not None}


def fields_of(result: Any, loaded: LoadedPipeline) -> dict[str, Any]:
    """Return the fields of the pipeline's output object by name."""
    if hasattr(result, "items"):
        return dict(result.items())
    names = list(loaded.signature.output_fields)
    values = result if isinstance(result, tuple) else (result,)
    return dict(zip(names, values, strict=False))
