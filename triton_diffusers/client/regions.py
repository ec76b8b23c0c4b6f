# SPDX-License-Identifier: Apache-2.0
"""System shared memory: one region a call, for its large inputs and the outputs of known size.

A region's file leaves /dev/shm as soon as the server has it mapped, so that nothing stays behind
even when this process is killed. Its pages are reserved first: a full /dev/shm is an error here
instead of a SIGBUS in the server. The result's arrays are views of the mapping and free it when
they go. (tritonclient.utils.shared_memory reserves nothing, unlinks last, and needs a copy.)
"""

import mmap
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_diffusers.config.admin_key import SHARED_MEMORY_DIR
from triton_diffusers.media.pixels import Array

PREFIX = "triton-diffusers-"
ALIGNMENT = 64
LARGE_BYTES = 4 << 20
"""Smaller tensors cost more to register than to send."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in a region."""

    offset: int
    byte_size: int


class Region:
    """A region that this process made and the server maps under the same name."""

    def __init__(self, byte_size: int):
        """Make the region. Raises OSError when /dev/shm is missing or too small."""
        self.name = PREFIX + secrets.token_hex(16)
        self.byte_size = byte_size
        self._path = SHARED_MEMORY_DIR / self.name
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, byte_size)
            self._memory = mmap.mmap(file, byte_size)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(file)

    @property
    def key(self) -> str:
        """What the server passes to shm_open."""
        return "/" + self.name

    def unlink(self) -> None:
        """Take the region's file away; mappings stay."""
        self._path.unlink(missing_ok=True)

    def array(self, slot: Slot, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Return the tensor in a slot, as a view."""
        return np.ndarray(shape, dtype, buffer=self._memory, offset=slot.offset)

    def write(self, slot: Slot, data: bytes | Array) -> None:
        """Copy a tensor into its slot; bytes are already laid out."""
        if isinstance(data, np.ndarray):
            self.array(slot, data.dtype, data.shape)[...] = data
        else:
            self._memory[slot.offset : slot.offset + slot.byte_size] = data


def place(sizes: Mapping[str, int], start: int = 0) -> tuple[dict[str, Slot], int]:
    """Lay tensors of these sizes out one behind the other; return their slots and the end."""
    slots = {}
    for name, size in sizes.items():
        slots[name] = Slot(start, size)
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return slots, start
