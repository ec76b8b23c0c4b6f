# SPDX-License-Identifier: Apache-2.0
"""The `info` output: what was used and how long it took, as JSON. No texts of the caller."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_diffusers.call import Call
from triton_diffusers.loading import LoadedPipeline


def render_info(
    call: Call,
    loaded: LoadedPipeline,
    seconds: Mapping[str, float],
    steps: int,
    warnings: Sequence[str],
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
        "steps": steps,
        "seconds": {stage: round(s, 6) for stage, s in seconds.items()},
        "warnings": list(warnings),
    }
    return json.dumps(info).encode()


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float)


def describe(value: Any) -> str:
    """Return facts as one line for the log, without the quotes that Triton's log would escape."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {describe(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(describe(part) for part in value)
    return str(value)
