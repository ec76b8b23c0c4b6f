# SPDX-License-Identifier: Apache-2.0
"""Room for an answer in the shared memory between a Python model and tritonserver.

An answer that does not fit is lost inside Triton's backend: the sender counts as closed before
the tensors are copied, no error can follow, and the caller would wait for ever. So the room is
looked at first.
"""

import os
from collections.abc import Callable, Mapping

from triton_diffusers.media.pixels import Array

FOLDER = "/dev/shm"
MARGIN = 1 << 20


def free_bytes(folder: str = FOLDER) -> int:
    """Return how much shared memory the machine or container has left."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def size_of(tensors: Mapping[str, Array]) -> int:
    """Return the bytes of tensors as they travel; texts carry their length."""
    return sum(
        sum(len(element) + 4 for element in array.flat) if array.dtype.kind == "O" else array.nbytes
        for array in tensors.values()
    )


class Room:
    """Shared memory of one instance; what an earlier answer used is used again."""

    def __init__(self, free: Callable[[], int] = free_bytes) -> None:
        self._free = free
        self._used_before = 0

    def check(self, tensors: Mapping[str, Array]) -> None:
        """Raise MemoryError where an answer cannot fit."""
        size = size_of(tensors)
        if size + MARGIN > self._free() and size > self._used_before:
            raise MemoryError(
                f"the answer of {size / 2**20:.0f} MB does not fit into the server's shared memory "
                f"({self._free() / 2**20:.0f} MB free in {FOLDER}): start it with more, in Docker "
                "with --shm-size=1g, or ask for an output_format such as png or mp4"
            )
        self._used_before = max(self._used_before, size)
