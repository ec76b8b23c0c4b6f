# SPDX-License-Identifier: Apache-2.0
"""What an exception of a pipeline means: a refusal of its inputs, want of memory, or a failure."""

import gc
import pickle
import pickletools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

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

FILE_NAMES = ("checkpoint_file", "checkpoint_path", "filename", "file", "f")
"""What torch, safetensors, diffusers and transformers call the file of weights that they open."""
ZIP = b"PK\x03\x04"
PROTOCOL = 0x80
"""The first byte of most pickles; the protocol's number and an instruction, never 0, follow."""


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
    for each in causes(error):
        traceback.clear_frames(each.__traceback__)
        for frame, _ in traceback.walk_tb(each.__traceback__):
            _ = frame.f_locals  # renews the copy of the names that reading them once had left
    gc.collect()


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, is want of memory: the GPU's or the host's."""
    return any(
        isinstance(each, MemoryError)
        or any(words in f"{type(each).__name__}: {each}" for words in (*GPU_FULL, *NO_MEMORY))
        for each in causes(error)
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    found: list[BaseException] = []
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and each not in found:
            found.append(each)
            yield each
            following += [each.__context__, each.__cause__]


def refused_pickle(error: BaseException) -> str | None:
    """Say which file of weights is a pickle that was not run, or return None.

    torch raises the same error for a file that is no pickle at all: that one is damaged. Its own
    text is left out, since it tells how to run the file all the same.
    """
    errors = list(causes(error))
    said = [str(e) for e in errors if isinstance(e, pickle.UnpicklingError)]
    disguised = any(type(e).__name__ == "SafetensorError" for e in errors)
    if not said and not disguised:
        return None
    file = weight_file(error)
    if file is None or not _is_pickle(file):
        return None
    instead = "and was not run, for it could run any code; use a version with safetensors files"
    if not said:
        return f"{file} is a pickle under the name of a safetensors file {instead}"
    name = re.search(r"GLOBAL ([\w.]{1,80}) ", " ".join(said))
    what = f" ({name[1]})" if name else ""
    return f"{file} is a pickle that holds more than weights{what} {instead}"


def weight_file(error: BaseException) -> Path | None:
    """Return the file of weights that was being opened, from the local names in the tracebacks."""
    for each in causes(error):
        frames = [frame for frame, _ in traceback.walk_tb(each.__traceback__)]
        for frame in reversed(frames):
            for name in FILE_NAMES:
                value = frame.f_locals.get(name)
                if isinstance(value, str | Path) and Path(value).is_file():
                    return Path(value)
    return None


def _is_pickle(file: Path) -> bool:
    """Tell by its first bytes whether a file is a pickle, or a zip archive as torch.save() writes.

    A safetensors file begins with the length of its header, whose third byte is 0 where the first
    two look like a pickle's.
    """
    with file.open("rb") as stream:
        head = stream.read(2**16)
    if head.startswith(ZIP):
        return True
    if len(head) > 2 and head[0] == PROTOCOL:
        return head[1] <= pickle.HIGHEST_PROTOCOL and head[2] > 0
    named = ""
    try:  # the oldest protocol is text; its instructions are only listed here
        for operation, argument, _ in pickletools.genops(head):
            named += f"{argument}\n" if operation.name == "GLOBAL" else ""
    except Exception:
        pass  # it ends here, or is none
    return re.search(r"^[\w.]+ [\w.]+$", named, re.MULTILINE) is not None
