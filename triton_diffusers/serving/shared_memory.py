# SPDX-License-Identifier: Apache-2.0
"""Room for an answer in the shared memory between a Python model and tritonserver.

Each instance has a region, which grows by whole steps while /dev/shm has room and never shrinks.
An answer that does not fit is lost inside Triton's backend: the sender counts as closed before
the tensors are copied, no error can follow, and the caller would wait for ever. So the room is
looked at first: in the region itself, then in what it may still grow by.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from triton_diffusers.errors import NoRoomError
from triton_diffusers.media.pixels import Array

FOLDER = "/dev/shm"
GROWTH = 1 << 20
"""By how much Triton's Python backend makes a region larger, unless its command line says."""
SMALL = 1 << 16
"""What is smaller finds room between the rest of a region."""


def free_bytes(folder: str = FOLDER) -> int:
    """Return how much shared memory the machine or container has left."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def growth_of(command: bytes) -> int:
    """Return the step of growth from a stub's command line: its fifth word."""
    with contextlib.suppress(IndexError, ValueError):
        return max(int(command.split(b"\0")[4]), 1)
    return GROWTH


def own_growth() -> int:
    """Return this process's step of growth."""
    with contextlib.suppress(OSError):
        return growth_of(Path("/proc/self/cmdline").read_bytes())
    return GROWTH


def sizes_of(tensors: Mapping[str, Array]) -> list[int]:
    """Return the bytes of tensors as they travel; texts carry their length."""
    return [
        sum(len(element) + 4 for element in array.flat) if array.dtype.kind == "O" else array.nbytes
        for array in tensors.values()
    ]


class Room:
    """Shared memory of one instance; what an earlier answer used is used again."""

    def __init__(
        self,
        free: Callable[[], int] = free_bytes,
        in_region: Callable[[], int] | None = None,
        growth: int = GROWTH,
    ) -> None:
        """in_region: the bytes of the region that are not in use; None where they are unknown."""
        self._free = free
        self._in_region = in_region
        self._growth = growth
        self._used_before = 0

    def check(self, tensors: Mapping[str, Array]) -> None:
        """Raise NoRoomError where an answer cannot fit."""
        sizes = sizes_of(tensors)
        size = sum(sizes)
        large = [n for n in sizes if n > SMALL]
        needed = sum(sizes if self._in_region else large)  # `info` is never twice the same length
        inside = self._used_before if self._in_region is None else self._in_region()
        steps = sum(n // self._growth + 1 for n in large)
        fits_inside = needed <= min(inside, max(self._used_before, inside // 2 - SMALL, 0))
        is_small = self._in_region is None and not steps
        if not (fits_inside or is_small) and max(steps, 1) * self._growth > self._free():
            raise NoRoomError(
                f"the answer of {size / 2**20:.2f} MB does not fit into the server's shared memory "
                f"({self._free() / 2**20:.2f} MB free in {FOLDER}): start the server with more, in "
                "Docker with --shm-size=1g, or ask for an output_format such as png or mp4"
            )
        self._used_before = max(self._used_before, needed)
