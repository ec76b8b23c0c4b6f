# SPDX-License-Identifier: Apache-2.0
"""The `info` output: what was used and how long it took, as JSON. No texts of the caller."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_diffusers.calls.arguments import Call
from triton_diffusers.calls.output_options import read_fps
from triton_diffusers.contract import Kind
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.record import Record, rounded


def render_info(
    call: Call, loaded: LoadedPipeline, record: Record, warnings: Sequence[str]
) -> bytes:
    """Return the JSON text."""
    info = {
        "model": loaded.config.model,
        "pipeline_class": loaded.signature.pipeline_class,
        **loaded.versions,
        "device": loaded.device,
        "dtype": loaded.dtype,
        **loaded.facts,
        "arguments": {n: v for n, v in call.kwargs.items() if _is_plain(v)},
        "seeds": call.seeds,
        **({"fps": call.output.fps} if loaded.signature.is_video else {}),
        **({"request_id": record.request_id} if record.request_id else {}),
        "steps": record.steps,
        "outputs": record.outputs,
        "batch": record.batch,
        "queue_length": record.queue_length,
        "peak_memory_bytes": record.peak_memory_bytes,
        "seconds": rounded(record.seconds),
        "warnings": list(warnings),
    }
    return json.dumps(info).encode()


def describe_model(loaded: LoadedPipeline) -> dict[str, Any]:
    """Return what does not change while a model is loaded, for probes."""
    signature = loaded.signature
    in_extra = [p.name for p in signature.parameters.values() if p.kind is Kind.JSON]
    told: dict[str, Any] = {"pipeline_class": signature.pipeline_class, "extra": in_extra}
    return told | ({"fps": read_fps({}, loaded.call_kwargs, loaded)} if signature.is_video else {})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float)


def describe_load(loaded: LoadedPipeline) -> str:
    """Return what loading came to as one line for the log, without quotes: Triton escapes them."""
    facts = dict(loaded.facts)
    load = facts.pop("load", None)
    parts = [f"loaded in {load['seconds']:.1f} s, {_mib(load['bytes'])}"] if load else ["loaded"]
    parts[0] += f", {_plain(loaded.dtype)}, on {facts.pop('placement', loaded.device)}"
    parts.append(f"attention {_plain(facts.pop('attention_backend', 'native'))}")
    for attempt in facts.pop("attention_attempts", ()):
        of = f" for {attempt['denoiser']}" if "denoiser" in attempt else ""
        parts.append(f"not {attempt['backend']}{of}: {attempt['reason']}")
    if quantization := facts.pop("quantization", None):
        sizes = {
            n: f"{_mib(v['bytes_before'])} -> {_mib(v['bytes'])}"
            for n, v in quantization.items()
            if n != "method"
        }
        parts.append(f"{quantization['method']}: {_plain(sizes)}")
    return "; ".join([*parts, *(f"{n.replace('_', ' ')} {_plain(v)}" for n, v in facts.items())])


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


def _mib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
