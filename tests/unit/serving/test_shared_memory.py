# SPDX-License-Identifier: Apache-2.0
"""An answer too large for the shared memory is an error, not a caller that waits for ever."""

from __future__ import annotations

import numpy as np
import pytest

from triton_diffusers.errors import NoRoomError
from triton_diffusers.serving.shared_memory import GROWTH, Room, free_bytes, growth_of, sizes_of

MB = 2**20
ANSWER = {"images": np.zeros((4, MB), np.uint8)}
LITTLE = {"images": np.zeros(50_000, np.uint8), "info": np.array([b"abc"], np.object_)}


def test_sizes() -> None:
    texts = np.array([b"abc", b""], np.object_)
    assert sizes_of({"a": np.zeros(3, np.float32), "b": texts}) == [12, 3 + 4 + 4]


def test_the_step_of_growth_is_the_stubs() -> None:
    stub = b"/x/triton_python_backend_stub\0/m/1/model.py\0region\0" + b"1048576\0" + b"2097152\0"
    assert growth_of(stub) == 2 * MB
    assert growth_of(b"python\0-m\0pytest") == GROWTH


def test_what_fits_passes() -> None:
    Room(lambda: 5 * MB).check(ANSWER)
    assert free_bytes() > 0
    Room().check({"a": np.zeros(3)})


@pytest.mark.parametrize(
    ("in_region", "growth"), [(None, MB), (lambda: MB, MB), (lambda: 4 * MB, MB), (None, 8 * MB)]
)
def test_what_does_not_fit_is_told_with_the_way_out(in_region, growth) -> None:
    room = Room(lambda: 3 * MB, in_region, growth)
    told = r"answer of 4.00 MB .*3.00 MB free.*--shm-size.*output_format"
    with pytest.raises(NoRoomError, match=told):
        room.check(ANSWER)


@pytest.mark.parametrize("in_region", [None, lambda: 300_000])
def test_small_answers_go_out_where_nothing_is_left(in_region) -> None:
    Room(lambda: 0, in_region).check(LITTLE)


def test_a_region_that_is_full_too_is_told() -> None:
    with pytest.raises(NoRoomError):
        Room(lambda: 0, lambda: 60_000).check(LITTLE)


@pytest.mark.parametrize("in_region", [None, lambda: 5 * MB])
def test_memory_of_an_earlier_answer_is_used_again(in_region) -> None:
    free = [100 * MB]
    room = Room(lambda: free[0], in_region)
    room.check(ANSWER)
    free[0] = 0
    room.check(ANSWER)
    with pytest.raises(NoRoomError):
        room.check({"images": np.zeros((5, MB), np.uint8)})
