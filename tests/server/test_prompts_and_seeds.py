# SPDX-License-Identifier: Apache-2.0
"""One prompt or several, several outputs per prompt, and seeds for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.served import PROTOCOLS
from tests.server.tiny_entries import ENTRIES, SMALL
from tests.tiny import TINY

FOX, KITE = "a red fox in the snow", "a kite over a field"
CLIP = {
    "prompt": KITE,
    "height": 16,
    "width": 32,
    "num_frames": 5,
    "num_inference_steps": 2,
    "max_sequence_length": 32,
}
SOUND = {"prompt": "rain", "num_inference_steps": 2, "audio_end_in_s": 0.75}


@pytest.mark.parametrize(
    ("negative", "passed"),
    [
        (None, {}),
        ("dark", {"negative_prompt": ["dark", "dark"]}),
        (["dark"], {"negative_prompt": ["dark", "dark"]}),
        (["dark", "blurry"], {"negative_prompt": ["dark", "blurry"]}),
        ("", {"negative_prompt": ["", ""]}),
    ],
    ids=["none", "one", "one-in-a-list", "one-each", "empty"],
)
def test_several_prompts(tiny_server, negative, passed):
    call = {"prompt": [FOX, KITE], **SMALL}
    expected = tiny_server.plain("pictures", call | passed)
    assert expected["images"].shape == (2, 32, 48, 3)
    tiny_server.check("pictures", expected, **call, negative_prompt=negative)


def test_one_prompt_in_a_list_is_one_prompt(tiny_server):
    expected = tiny_server.plain("pictures", {"prompt": FOX, "negative_prompt": "dark", **SMALL})
    tiny_server.check("pictures", expected, prompt=[FOX], negative_prompt=["dark"], **SMALL)


@pytest.mark.parametrize(
    ("entry", "negative", "passed"),
    [
        ("defaults", None, ["blurry", "blurry"]),
        ("defaults", "dark", ["dark", "dark"]),
        ("defaults", ["dark", ""], ["dark", ""]),
        ("listed", None, ["blurry", "dark"]),
        ("listed", ["", "green"], ["", "green"]),
        ("listed", "green", ["green", "green"]),
    ],
)
def test_several_prompts_and_the_entrys_negative_prompt(tiny_server, entry, negative, passed):
    call = {"prompt": [FOX, KITE]}
    expected = tiny_server.plain(entry, ENTRIES[entry].call | call | {"negative_prompt": passed})
    tiny_server.check(entry, expected, **call, negative_prompt=negative)


def test_several_prompts_for_true_guidance(tiny_server):
    call = {"prompt": [FOX, KITE], "height": 64, "width": 64, "num_inference_steps": 1}
    call["true_cfg_scale"] = 2.0
    tiny_server.same("guided", **call)
    negative = {"negative_prompt": ["dark", "dark"]}
    expected = tiny_server.plain("guided", call | negative)
    tiny_server.check("guided", expected, **call, negative_prompt="dark")


@pytest.mark.parametrize(
    ("entry", "call", "output"),
    [
        ("pictures", {"prompt": FOX, **SMALL, "num_images_per_prompt": 3}, "images"),
        ("wan", CLIP | {"num_videos_per_prompt": 3}, "frames"),
        ("sounds", SOUND | {"num_waveforms_per_prompt": 3}, "audios"),
    ],
    ids=["images", "videos", "waveforms"],
)
def test_several_outputs_per_prompt(tiny_server, entry, call, output):
    for seed in (7, [7, 8, 9]):
        result = tiny_server.same(entry, seed, **call)
        array = result.arrays[output]
        assert len(array) == 3
        assert len({array[i].tobytes() for i in range(3)}) == 3
        assert result.seeds == (seed if isinstance(seed, list) else [seed])


def test_each_output_can_be_had_again_from_its_seed(tiny_server):
    call = {"prompt": FOX, **SMALL}
    both = tiny_server.same("pictures", [11, 12], **call, num_images_per_prompt=2).arrays["images"]
    for seed, picture in zip((11, 12), both, strict=True):
        alone = tiny_server.ask("pictures", **call, seed=seed).arrays["images"][0]
        # a batch of two takes other kernels than a batch of one: the same picture up to rounding
        assert np.abs(alone.astype(int) - picture).max() <= 1


def test_a_seed_for_every_prompt_and_output(tiny_server):
    call = {"prompt": [FOX, KITE], **SMALL, "num_images_per_prompt": 2}
    tiny_server.same("pictures", [1, 2, 3, 4], **call)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sent", [{}, {"seed": -1}], ids=["none", "-1"])
def test_a_drawn_seed_is_returned_and_repeats(tiny_server, protocol, sent):
    call = {"prompt": FOX, **SMALL, **sent}
    first = tiny_server.ask("pictures", protocol, **call)
    second = tiny_server.ask("pictures", protocol, **call)
    assert first.seeds != second.seeds
    assert not np.array_equal(first.arrays["images"], second.arrays["images"])
    (seed,) = first.seeds
    again = tiny_server.ask("pictures", protocol, **call | {"seed": seed})
    np.testing.assert_array_equal(again.arrays["images"], first.arrays["images"])
    assert again.seeds == [seed]


def test_each_seed_of_minus_one_is_drawn(tiny_server):
    call = {"prompt": FOX, **SMALL, "num_images_per_prompt": 3}
    seeds = tiny_server.ask("pictures", **call, seed=[-1, 5, -1]).seeds
    assert seeds[1] == 5
    assert len({*seeds, -1}) == 4


def test_a_drawn_seed_repeats_where_the_pipeline_has_its_own(tiny_server):
    call = TINY["ltx-long"].inputs()
    first = tiny_server.ask("long-clips", **call, seed=-1)
    again = tiny_server.ask("long-clips", **call, seed=first.seeds[0])
    np.testing.assert_array_equal(again.arrays["frames"], first.arrays["frames"])


def test_a_drawn_seed_is_what_plain_diffusers_would_need(tiny_server):
    call = {"prompt": FOX, **SMALL, "num_images_per_prompt": 2}
    drawn = tiny_server.ask("pictures", **call)
    expected = tiny_server.plain("pictures", call, tuple(drawn.seeds))
    np.testing.assert_array_equal(drawn.arrays["images"], expected["images"])


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**63 - 1])
def test_large_seeds(tiny_server, seed):
    tiny_server.same("pictures", seed, prompt=FOX, **SMALL)
