# SPDX-License-Identifier: Apache-2.0
"""An answer too large for the shared memory is an error, not a caller that waits for ever."""

from __future__ import annotations

import numpy as np
import pytest

from triton_diffusers.serving.shared_memory import MARGIN, Room, free_bytes, size_of

MB = 2**20
ANSWER = {"images": np.zeros((4, MB), np.uint8)}


def test_sizes() -> None:
    texts = np.array([b"abc", b""], np.object_)
    assert size_of({"a": np.zeros(3, np.float32), "b": texts}) == 12 + 3 + 4 + 4


def test_what_fits_passes() -> None:
    Room(lambda: 4 * MB + MARGIN).check(ANSWER)
    assert free_bytes() > 0
    Room().check({"a": np.zeros(3)})


def test_what_does_not_fit_is_told_with_the_way_out() -> None:
    with pytest.raises(MemoryError, match=r"answer of 4 MB .*3 MB free.*--shm-size.*output_format"):
        Room(lambda: 3 * MB).check(ANSWER)


def test_memory_of_an_earlier_answer_is_used_again() -> None:
    free = [100 * MB]
    room = Room(lambda: free[0])
    room.check(ANSWER)
    free[0] = 0
    room.check(ANSWER)
    with pytest.raises(MemoryError):
        room.check({"images": np.zeros((5, MB), np.uint8)})
