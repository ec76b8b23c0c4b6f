# SPDX-License-Identifier: Apache-2.0
"""The made-up call: what it says, and what wins over what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.made_up import ClipPipeline, PicturePipeline
from triton_diffusers.calls.sample import (
    FEW_STEPS,
    PROMPT,
    SIDES,
    Media,
    Sample,
    first_that_works,
    sample_kwargs,
    samples,
)
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.signature import read_signature

PICTURES = read_signature(PicturePipeline)
CLIPS = read_signature(ClipPipeline)


def test_a_call_says_a_prompt_few_steps_and_a_small_size() -> None:
    side = SIDES[0]
    assert sample_kwargs(PICTURES, {}) == {
        "prompt": PROMPT,
        "num_inference_steps": FEW_STEPS,
        "height": side,
        "width": side,
    }


def test_the_entrys_arguments_win_but_for_the_steps() -> None:
    entry = {"height": 96, "num_inference_steps": 50, "prompt": "a fox", "guidance_scale": 1.0}
    made = sample_kwargs(PICTURES, entry)
    assert made | {"width": None} == entry | {"num_inference_steps": FEW_STEPS, "width": None}


def test_overrides_win_over_everything() -> None:
    entry = {"height": 96, "num_inference_steps": 50}
    given = {"height": 48, "num_inference_steps": 7, "original_size": [4, 2]}
    made = sample_kwargs(PICTURES, entry, given)
    assert made["height"] == 48
    assert made["num_inference_steps"] == 7
    assert made["original_size"] == (4, 2)


def test_values_become_what_the_pipeline_takes() -> None:
    made = sample_kwargs(PICTURES, {"task": "paint"})
    assert made["task"].value == "paint"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hieght", "Did you mean 'height'?"),
        ("generator", "send 'seed' instead"),
        ("image", "made up where they are needed"),
        ("latents", "text cannot say"),
    ],
)
def test_an_override_that_does_nothing_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        sample_kwargs(PICTURES, {}, {name: 1})


def test_pictures_have_the_calls_size_and_masks_are_white_inside() -> None:
    sample = Sample(media=Media.NEEDED)
    made = sample_kwargs(PICTURES, {}, {"height": 40, "width": 64}, sample)
    assert made["image"].size == made["mask_image"].size == (64, 40)
    assert made["image"].mode == "RGB"
    assert made["mask_image"].mode == "L"
    assert made["mask_image"].getpixel((32, 20)) == 255
    assert made["mask_image"].getpixel((0, 0)) == 0


def test_a_clip_has_as_many_frames_as_the_call_asks_for() -> None:
    made = sample_kwargs(CLIPS, {}, None, Sample(media=Media.EVERY))
    clips = {n: v for n, v in made.items() if isinstance(v, list) and len(v) > 1}
    asked = next(made[n] for n in ("num_frames", "frames", "video_length") if n in made)
    assert clips
    assert {len(v) for v in clips.values()} == {asked}


def test_calls_without_optional_media_come_first_then_smaller_ones() -> None:
    tried = list(samples(PICTURES))
    assert tried[0] == Sample(SIDES[0], Media.REQUIRED)
    assert [s.side for s in tried] == sorted((s.side for s in tried), key=SIDES.index)
    assert {s.side for s in samples(PICTURES, small=False)} == {None}


def test_the_first_call_that_works_ends_the_search() -> None:
    calls: list[dict[str, Any]] = []

    def call(kwargs: dict[str, Any]) -> int:
        calls.append(kwargs)
        if "image" not in kwargs:
            raise ValueError("image is missing")
        return len(calls)

    assert first_that_works(PICTURES, {}, None, call) == 2


def test_the_error_is_that_of_the_most_usual_call() -> None:
    def call(kwargs: dict[str, Any]) -> None:
        raise ValueError("lists" if isinstance(kwargs.get("image"), list) else "one")

    with pytest.raises(ValueError, match="one"):
        first_that_works(PICTURES, {}, None, call)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_call_that_fails_the_same_way_again_and_again_ends_the_search(is_same: bool) -> None:
    calls: list[dict[str, Any]] = []

    def call(kwargs: dict[str, Any]) -> None:
        calls.append(kwargs)
        raise IndexError("index out of range" if is_same else f"call {len(calls)}")

    with pytest.raises(IndexError):
        first_that_works(PICTURES, {}, None, call)
    every = len(list(samples(PICTURES)))
    levels = every // len(SIDES)
    assert every > 10
    assert len(calls) == (max(6, 2 * levels + 1) if is_same else every)
