# SPDX-License-Identifier: Apache-2.0
"""The progress bar that a pipeline drives without knowing that it is ours."""

from __future__ import annotations

import pytest

from triton_diffusers.errors import CancelledError
from triton_diffusers.pipelines.isolation import StepBar

Steps = list[tuple[int, int]]


def _record(steps: Steps):
    return lambda done, total: steps.append((done, total))


def test_a_bar_with_a_total_counts_updates() -> None:
    steps: Steps = []
    with StepBar(_record(steps), total=3) as bar:
        for _ in range(3):
            bar.update()
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_bar_around_timesteps_counts_them() -> None:
    steps: Steps = []
    assert list(StepBar(_record(steps), iterable=[30, 20, 10])) == [30, 20, 10]
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_bar_around_a_generator_has_no_total() -> None:
    steps: Steps = []
    list(StepBar(_record(steps), iterable=iter("ab")))
    assert steps == [(1, 0), (2, 0)]


def test_several_steps_at_once() -> None:
    steps: Steps = []
    StepBar(_record(steps), total=10).update(4)
    assert steps == [(4, 10)]


def test_a_raising_callback_stops_the_loop() -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise CancelledError("enough")

    bar = iter(StepBar(stop, iterable=range(10)))
    assert [next(bar), next(bar)] == [0, 1]
    with pytest.raises(CancelledError, match="enough"):
        next(bar)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with StepBar(lambda done, total: None, total=2) as bar:
        bar.update()
        bar.set_description("noise")
        bar.set_postfix(loss=1)
    said = capfd.readouterr()
    assert said.out + said.err == ""
