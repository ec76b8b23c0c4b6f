# SPDX-License-Identifier: Apache-2.0
"""What an exception of a pipeline means: a refusal of its inputs, want of memory, or a failure."""

import gc
import traceback
from collections.abc import Iterator

CHECKERS = {"diffusers", "transformers"}
"""Packages that look at a pipeline's inputs before its first step."""
GPU_FULL = ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory", "HIP out of")
NO_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory", "not enough memory"),
    "can't start new thread",
)
"""As PyTorch's allocator, the operating system, safetensors and Python word it.

A thread's stack is memory too, and shards are loaded by several threads.
"""


def is_refusal(error: Exception, started: bool) -> bool:
    """Tell whether a pipeline checked its inputs and refused them.

    That is in `check_inputs`, or where a library that prepares inputs raises ValueError or
    TypeError of its own before the first step.
    """
    if not isinstance(error, ValueError | TypeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    package = _modules(error)[-1].partition(".")[0]
    raised = package in CHECKERS and (frames[-1].line or "").startswith("raise ")
    return bool((raised or package == "PIL") and not started) or any(
        f.name == "check_inputs" for f in frames
    )


def is_of_a_scheduler(error: BaseException) -> bool:
    """Tell whether a scheduler raised: what the call asked of it was its options, or default."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    in_one = any(name.startswith("diffusers.schedulers.") for name in _modules(error))
    return in_one or last.name == "retrieve_timesteps"


def _modules(error: BaseException) -> list[str]:
    """Return the names of the modules that an exception went through, the one that raised last."""
    return [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


def forget(error: BaseException) -> None:
    """Let go of what a failed load had loaded: it hangs on the local names in the tracebacks."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
        for frame, _ in traceback.walk_tb(each.__traceback__):
            _ = frame.f_locals  # renews the copy of the names that reading them once had left
    gc.collect()


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, is want of memory: the GPU's or the host's."""
    return any(
        isinstance(each, MemoryError)
        or any(words in f"{type(each).__name__}: {each}" for words in (*GPU_FULL, *NO_MEMORY))
        for each in chain(error)
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    found: list[BaseException] = []
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and each not in found:
            found.append(each)
            yield each
            following += [each.__context__, each.__cause__]
