# SPDX-License-Identifier: Apache-2.0
"""Numbers of a request against the entry's limits, whatever the pipeline."""

from __future__ import annotations

import pytest

from triton_diffusers.calls.limits import LIMITS, check_ranges
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.errors import RequestError

CONFIG = ServeConfig(model="m")
NAMES = {option.name for option in options()}
TOO_MUCH = (
    "num_inference_steps",
    "prior_num_inference_steps",
    "steps",
    "num_frames",
    "frames",
    "video_length",
    "num_latent_frames_per_chunk",
    "segment_frame_length",
    "batch_size",
    "num_images_per_prompt",
    "ensemble_size",
    "max_sequence_length",
    "prompt_max_new_tokens",
    "max_area",
    "height",
    "upsampling_width",
    "processing_resolution",
    "audio_length_in_s",
    "audio_duration",
)
FREE = ("guidance_scale", "clip_skip", "sampling_rate", "motion_bucket_id", "seed")


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.names.pattern)
def test_every_limit_names_an_option(limit) -> None:
    assert limit.option in NAMES
    assert limit.of(getattr(CONFIG, limit.option)) > 0


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much(name: str) -> None:
    with pytest.raises(RequestError, match=f"input '{name}': .*; at most .* of the entry"):
        check_ranges({name: 10**12}, CONFIG)
    with pytest.raises(RequestError, match=f"input '{name}'"):
        check_ranges({name: [1, 10**12]}, CONFIG)
    check_ranges({name: 1}, CONFIG)


@pytest.mark.parametrize("name", FREE)
def test_other_numbers_are_the_pipelines_business(name: str) -> None:
    check_ranges({name: 10**12, "flag": True, "text": "x", "none": None}, CONFIG)


@pytest.mark.parametrize("name", ["height", "num_frames", "num_images_per_prompt", "batch_size"])
@pytest.mark.parametrize("number", [0, -1, -(2**63)])
def test_counts_and_sizes_are_positive(name: str, number: int) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        check_ranges({name: number}, CONFIG)


@pytest.mark.parametrize("name", ["timesteps", "sigmas"])
def test_lists_of_steps_are_limited(name: str) -> None:
    with pytest.raises(RequestError, match=f"'{name}', elements: 1001; at most 1000"):
        check_ranges({name: [1] * 1001}, CONFIG)
