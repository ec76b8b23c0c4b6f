# SPDX-License-Identifier: Apache-2.0
"""Latents as grids of places, and the linear map from places to colours."""

from __future__ import annotations

import numpy as np
import pytest

from triton_diffusers.previews.colours import (
    MIN_SCORE,
    ColourMap,
    Grid,
    Reading,
    is_flat,
    patch_size,
    read_sized,
    readings,
)


def _read(shape: tuple[int, ...], *pictures: int) -> list[Reading]:
    return list(readings(shape, pictures))


@pytest.mark.parametrize(
    ("shape", "pictures", "axes", "grid"),
    [
        ((1, 4, 64, 96), (1, 1, 512, 768), "bchw", Grid(1, 64, 96)),
        ((2, 3, 16, 16), (2, 1, 16, 16), "bchw", Grid(1, 16, 16)),
        ((1, 16, 21, 60, 104), (1, 81, 480, 832), "bcfhw", Grid(21, 60, 104)),
        ((1, 13, 16, 60, 90), (1, 49, 480, 720), "bfchw", Grid(13, 60, 90)),
        ((1, 31, 64, 96, 16), (1, 121, 512, 768), "bfhwc", Grid(31, 64, 96)),
        ((1, 1536, 64), (1, 1, 512, 768), "bsc", Grid(1, 32, 48)),
        ((3, 1536, 64), (3, 1, 768, 512), "bsc", Grid(1, 48, 32)),
        ((1, 21 * 16 * 22, 128), (1, 161, 512, 704), "bsc", Grid(21, 16, 22)),
    ],
)
def test_latents_are_read_by_their_pictures(
    shape: tuple[int, ...], pictures: tuple[int, ...], axes: str, grid: Grid
) -> None:
    assert Reading(axes, grid) in _read(shape, *pictures)


@pytest.mark.parametrize(
    ("shape", "pictures"),
    [
        ((1, 4, 64, 64), (1, 1, 512, 768)),  # another aspect
        ((2, 4, 64, 96), (1, 1, 512, 768)),  # another count
        ((1, 13, 8), (1, 1, 512, 768)),  # no such grid
        ((1, 2000), (1, 1, 512, 512)),  # no grid at all
        ((1, 4096, 8, 8), (1, 1, 512, 512)),  # too many channels
    ],
)
def test_what_is_no_grid_of_the_picture_is_not_read(
    shape: tuple[int, ...], pictures: tuple[int, ...]
) -> None:
    assert _read(shape, *pictures) == []


def test_sizes_that_were_rounded_still_fit() -> None:
    assert _read((1, 62 * 37, 64), 1, 1, 992, 592) == [Reading("bsc", Grid(1, 62, 37))]
    assert Reading("bchw", Grid(1, 5, 7)) in _read((1, 4, 5, 7), 1, 1, 39, 57)


@pytest.mark.parametrize("axes", ["bchw", "bhwc", "bcfhw", "bfchw", "bfhwc"])
def test_the_middle_frame_comes_with_channels_last(axes: str) -> None:
    sizes = {"b": 2, "c": 3, "f": 5, "h": 4, "w": 6}
    shape = tuple(sizes[axis] for axis in axes)
    latents = np.arange(np.prod(shape)).reshape(shape)
    middle = read_sized(axes, shape).middle(latents)
    assert (middle.shape, middle.dtype) == ((2, 4, 6, 3), np.float32)
    place = {"b": 1, "c": 2, "f": 2, "h": 3, "w": 5}
    assert middle[1, 3, 5, 2] == latents[tuple(place[axis] for axis in axes)]


def test_the_middle_frame_of_tokens() -> None:
    latents = np.arange(2 * 3 * 8 * 5).reshape(2, 24, 5)
    middle = Reading("bsc", Grid(3, 2, 4)).middle(latents)
    assert middle.shape == (2, 2, 4, 5)
    np.testing.assert_array_equal(middle.reshape(2, 8, 5), latents[:, 8:16])


def test_the_picture_of_the_middle_frame() -> None:
    assert Reading("bcfhw", Grid(21, 8, 8)).frame_of(81) == 40
    assert Reading("bcfhw", Grid(2, 8, 8)).frame_of(5) == 4
    assert Reading("bchw", Grid(1, 8, 8)).frame_of(1) == 0


def test_a_place_tells_as_many_colours_as_it_has_channels() -> None:
    grid = Grid(1, 32, 32)
    assert [patch_size(c, grid, 512) for c in (1, 3, 4, 16, 64, 128)] == [1, 1, 2, 4, 8, 8]
    assert patch_size(64, grid, 64) == 2  # not more than the picture has


def _world(channels: int, patch: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Latents, and pictures that are linear in them but for noise."""
    rng = np.random.default_rng(channels)
    places = rng.normal(size=(2, 12, 16, channels)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(channels, 3 * patch**2)) / channels**0.5
    colours = 0.5 + 0.1 * places @ weights + noise * rng.normal(size=(2, 12, 16, 3 * patch**2))
    cut = colours.reshape(2, 12, 16, patch, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    small = cut.reshape(2, 12 * patch, 16 * patch, 3).clip(0, 1)
    pictures = np.rint(small * 255).astype(np.uint8)
    return places, np.repeat(np.repeat(pictures, 4, 1), 4, 2)


@pytest.mark.parametrize(("channels", "patch"), [(4, 2), (16, 4), (3, 1)])
def test_a_linear_world_is_learned_from_one_call(channels: int, patch: int) -> None:
    places, pictures = _world(channels, patch)
    colours = ColourMap(channels, patch)
    colours.learn(places, pictures)
    painted = colours.paint(places)
    assert painted.dtype == np.uint8
    assert painted.shape == (2, 12 * patch, 16 * patch, 3)
    assert colours.score > 0.97
    off = np.abs(painted.astype(int) - pictures[:, ::4, ::4].astype(int))
    assert off.mean() < 4


def test_noise_is_told_from_pictures() -> None:
    places, _ = _world(16, 4)
    noise = np.random.default_rng(2).integers(0, 256, (2, 192, 256, 3)).astype(np.uint8)
    colours = ColourMap(16, 4)
    for _ in range(4):
        colours.learn(places, noise)
    assert colours.score < 0.1 < MIN_SCORE


def test_latents_that_overflowed_paint_something() -> None:
    places, pictures = _world(4, 2)
    colours = ColourMap(4, 2)
    colours.learn(places, pictures)
    places[0, 0, 0] = np.nan
    assert colours.paint(places).shape == (2, 24, 32, 3)


def test_flat_pictures() -> None:
    assert is_flat(np.zeros((1, 8, 8, 3), np.uint8))
    assert not is_flat(_world(4, 2)[1])
