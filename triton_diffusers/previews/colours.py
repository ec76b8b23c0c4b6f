# SPDX-License-Identifier: Apache-2.0
"""Latents -> colours by a linear map, learned from pairs of finished latents and pictures.

Latents are read as places of a grid: the same place of the picture has nearly a linear function of
their channels for its colours. Knows no torch; tensors need only slicing until they are small.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.media.pixels import Array, float32

MIN_SCORE = 0.5
"""How much of the variance of the places' mean colours a map must explain: R2, on places that it
has not learned from."""

MIN_PLACES = 8
MAX_PLACES = 4096
"""Places of one call that are learned from; a quarter of them only tests."""

FORGET = 0.5
"""How much the tests of earlier calls, made with poorer maps, still count."""

MAX_CHANNELS = 512
RIDGE = 10.0
"""As many places as would pull each colour towards the mean: steadies maps of few places."""

FLAT = 2 / 255
"""Pictures that vary less teach nothing: black ones of a safety checker, for instance."""

AXES = {3: ("bsc",), 4: ("bchw", "bhwc"), 5: ("bcfhw", "bfchw", "bfhwc")}
"""By rank: batch, channels, frames, height, width; `s` are tokens, frame by frame, row by row."""

ASPECT = 1.05
"""By how much the sides of a grid may differ from the picture's: sizes are rounded."""


@dataclass(frozen=True)
class Grid:
    """The places of latents."""

    frames: int
    height: int
    width: int


@dataclass(frozen=True)
class Reading:
    """One way to read latents: which axis is what, and the grid."""

    axes: str
    grid: Grid

    def middle(self, latents: Any) -> Array:
        """Return the middle frame as float32 [batch, height, width, channels]."""
        grid, frame = self.grid, self.grid.frames // 2
        if self.axes == "bsc":
            size = grid.height * grid.width
            tokens = float32(latents[:, frame * size : (frame + 1) * size])
            return tokens.reshape(len(tokens), grid.height, grid.width, -1)
        if "f" in self.axes:
            latents = latents[(slice(None),) * self.axes.index("f") + (frame,)]
        axes = self.axes.replace("f", "")
        return float32(latents).transpose([axes.index(axis) for axis in "bhwc"])

    def frame_of(self, frames: int) -> int:
        """Return which of a video's frames belongs to the middle one of the latents."""
        if self.grid.frames == 1:
            return frames // 2
        return round(self.grid.frames // 2 * (frames - 1) / (self.grid.frames - 1))


def readings(shape: tuple[int, ...], pictures: tuple[int, ...]) -> Iterator[Reading]:
    """Yield the ways in which latents of a shape may be a grid of the pictures' places.

    pictures: the shape [N, F, H, W, ...]; F is 1 for pictures that do not move.
    """
    count, frames, height, width = pictures[:4]
    for axes in AXES.get(len(shape), ()):
        size = dict(zip(axes, shape, strict=True))
        if size["b"] != count or size["c"] > MAX_CHANNELS:
            continue
        if "s" in size:
            yield from _tokens(size["s"], frames, height / width)
        elif (
            size.get("f", 1) <= frames
            and size["h"] <= height
            and size["w"] <= width
            and _fits(size["h"], size["w"], height / width)
        ):
            yield Reading(axes, Grid(size.get("f", 1), size["h"], size["w"]))


def read_sized(axes: str, shape: tuple[int, ...]) -> Reading:
    """Return the reading of latents whose axes tell their grid, which tokens do not."""
    size = dict(zip(axes, shape, strict=True))
    return Reading(axes, Grid(size.get("f", 1), size["h"], size["w"]))


def _tokens(count: int, frames: int, aspect: float) -> Iterator[Reading]:
    """Yield the grids of tokens; videos have 1, 2, 4 ... frames to one of the latents."""
    squeezed = {(frames - 1) // t + 1 for t in (1, 2, 4, 8, 16)}
    squeezed |= {frames // t for t in (1, 2, 4, 8, 16) if frames >= t}
    for kept in sorted(squeezed):
        places = count // kept
        if places * kept != count:
            continue
        heights = [h for h in range(1, places + 1) if places % h == 0]
        height = min(heights, key=lambda h: abs(math.log(h * h / places / aspect)))
        if _fits(height, places // height, aspect):
            yield Reading("bsc", Grid(kept, height, places // height))


def _fits(height: int, width: int, aspect: float) -> bool:
    """Tell whether a grid has the aspect (height : width) of a picture, one row or column off."""
    low, high = (height - 0.5) / (width + 0.5), (height + 0.5) / (width - 0.5)
    return min(low, height / width / ASPECT) <= aspect <= max(high, height / width * ASPECT)


class ColourMap:
    """The linear map of latents with some number of channels, which gets better call by call.

    A place tells a patch of `patch` x `patch` colours.
    """

    def __init__(self, channels: int, patch: int) -> None:
        self.channels, self.patch = channels, patch
        self._xx = np.zeros((channels + 1, channels + 1))
        self._xy = np.zeros((channels + 1, 3 * patch * patch))
        self._weights = self._xy.astype(np.float32)
        self._missed = self._varied = 0.0

    @property
    def score(self) -> float:
        """R2: the part of the colours' variance that the map explains, where it was tested."""
        return 1 - self._missed / self._varied if self._varied else 0.0

    def learn(self, places: Array, pictures: Array) -> None:
        """Learn from latents [B, h, w, C] and their pictures, uint8 [B, H, W, 3]."""
        x = _with_one(places)
        if len(x) < MIN_PLACES:
            return
        y = _patches(pictures, places.shape[1], places.shape[2], self.patch)
        order = np.random.default_rng(0).permutation(len(x))[:MAX_PLACES]
        tested, learned = order[::4], np.delete(order, np.s_[::4])
        taught = x[learned].astype(np.float64)
        self._xx += taught.T @ taught
        self._xy += taught.T @ y[learned]
        # the last entry of the diagonal counts places; the mean colour is not held back
        size = np.trace(self._xx[:-1, :-1]) / self._xx[-1, -1] / self.channels
        ridge = RIDGE * size * np.diag([1.0] * self.channels + [0.0])
        self._weights = np.linalg.solve(self._xx + ridge, self._xy).astype(np.float32)
        found, wanted = (_means(v) for v in (x[tested] @ self._weights, y[tested]))
        self._missed = FORGET * self._missed + float(((found - wanted) ** 2).sum())
        self._varied = FORGET * self._varied + float(((wanted - wanted.mean(0)) ** 2).sum())

    def paint(self, places: Array) -> Array:
        """Return pictures, uint8 [B, h * patch, w * patch, 3], of latents [B, h, w, C]."""
        batch, height, width, _ = places.shape
        p = self.patch
        colours = (_with_one(places) @ self._weights).reshape(batch, height, width, p, p, 3)
        pictures = colours.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * p, width * p, 3)
        painted: Array = np.rint(np.nan_to_num(pictures).clip(0, 1) * 255).astype(np.uint8)
        return painted


def patch_size(channels: int, grid: Grid, height: int) -> int:
    """Return how many colours a side of a place tells: a place has not more than its channels."""
    patch = 1
    while (2 * patch) ** 2 <= channels and 2 * patch * grid.height <= height:
        patch *= 2
    return patch


def _means(patches: Array) -> Array:
    """Return the mean colour of each place, [places, 3]."""
    means: Array = patches.reshape(len(patches), -1, 3).mean(1)
    return means


def is_flat(pictures: Array) -> bool:
    """Tell whether pictures, uint8, are of one colour."""
    return bool(pictures.std() < FLAT * 255)


def _with_one(places: Array) -> Array:
    """Return [places, C + 1]: the last is 1, for the constant part of the map."""
    flat = places.reshape(-1, places.shape[-1])
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], axis=1)


def _patches(pictures: Array, height: int, width: int, patch: int) -> Array:
    """Return the colours of each place, float32 [places, 3 * patch * patch], 0.0-1.0."""
    size = (width * patch, height * patch)
    small = np.stack(
        [np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BOX)) for p in pictures]
    )
    cut = small.reshape(len(pictures), height, patch, width, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    colours: Array = cut.reshape(-1, 3 * patch * patch).astype(np.float32) / 255
    return colours
