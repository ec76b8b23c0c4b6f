# SPDX-License-Identifier: Apache-2.0
"""What is known of one request once it is answered: for the metrics, the log and `info`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.errors import (
    BusyError,
    CallError,
    CancelledError,
    OutOfMemoryError,
    RequestError,
    StuckError,
    TimedOutError,
)
from triton_diffusers.media.pixels import Array

OK = "ok"
ENDINGS = (
    *(RequestError, BusyError, CancelledError, TimedOutError, OutOfMemoryError, StuckError),
    CallError,
)
ALL_OUTCOMES = (OK, *(kind.outcome for kind in ENDINGS))
WHOLE, PARTS = "pipeline", ("encode_prompt", "denoise", "decode_latents")
BATCH = "batch"
GPU_LOCK = "gpu_lock"
STAGES = ("queue", GPU_LOCK, "decode_inputs", *PARTS, WHOLE, BATCH, "encode_outputs", "send")
"""A call that drives a progress bar has the parts of `pipeline`, which is their sum.

GPU_LOCK: what a call waited for those of other entries with its `gpu_lock`.
BATCH: what a request of a batch waited for the others, where they ran one by one to be compared.
"""
LONGEST_ID = 128


@dataclass
class Record:
    """One request, from acceptance to its answer. Of the caller's texts it holds only the id."""

    request_id: str = ""
    outcome: str = ""
    arguments: dict[str, int] = field(default_factory=dict)
    """The whole numbers among the call's arguments: sizes, frames, steps."""
    seeds: list[int] = field(default_factory=list)
    steps: int = 0
    outputs: int = 0
    batch: int = 1
    """How many requests ran as one call."""
    priority: int = 0
    queue_length: int = 0
    """How many requests waited when this one came."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage (see STAGES), and `total`."""
    input_bytes: int = 0
    output_bytes: int = 0
    nan: bool = False
    """Whether an output held NaN."""
    peak_memory_bytes: int = 0

    def as_json(self) -> str:
        """Return the record on one line."""
        return json.dumps(vars(self) | {"seconds": rounded(self.seconds)})


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a request that ended with an error."""
    return error.outcome if isinstance(error, CallError) else CallError.outcome


def exclusive(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the stages that do not contain each other, so that they add up."""
    split = all(part in seconds for part in PARTS)
    return {s: seconds[s] for s in STAGES if s in seconds and not (split and s == WHOLE)}


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds to the microsecond."""
    return {stage: round(s, 6) for stage, s in seconds.items()}


def whole_numbers(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the arguments that are whole numbers."""
    return {n: v for n, v in arguments.items() if isinstance(v, int) and not isinstance(v, bool)}


def bytes_of(arrays: Iterable[Array]) -> int:
    """Return how many bytes arrays carry, texts and files included."""
    return sum(
        sum(len(element) for element in array.flat) if array.dtype == object else array.nbytes
        for array in arrays
    )
