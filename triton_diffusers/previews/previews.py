# SPDX-License-Identifier: Apache-2.0
"""Previews of running calls: a fast approximation, learned from the model's own finished pictures.

No model is known here. What a call's schedulers returned last and the picture that the pipeline
made of it are a pair; a linear map from such pairs paints the latents of later calls.
"""

import base64
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_diffusers.contract import PICTURE_FIELDS, VIDEO_FIELDS
from triton_diffusers.errors import one_line
from triton_diffusers.media import encode
from triton_diffusers.media.pixels import Array, read_pictures
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
from triton_diffusers.previews.latents import Latents, SchedulerStep

LESSONS = 8
"""Finished calls that an instance learns from."""

QUALITY = 90
NONE_YET = (
    "no previews: their colours are learned from finished calls, of which this instance had none"
)


@dataclass
class _Known:
    """Latents of one kind."""

    axes: str
    colours: ColourMap
    stride: float = 0.0
    """How many rows of the picture one row of places is."""
    grids: dict[int, Grid | None] = field(default_factory=dict)
    """Number of tokens -> the grid that finished calls had; None where they differed."""

    def learn(self, reading: Reading, latents: Any, pictures: Array) -> None:
        """Learn from finished latents and pictures [N, F, H, W, 3]."""
        frame = pictures[:, reading.frame_of(pictures.shape[1])]
        self.colours.learn(reading.middle(latents), frame)
        self.stride = pictures.shape[2] / reading.grid.height
        count = int(latents.shape[1])
        seen = self.grids.setdefault(count, reading.grid)
        self.grids[count] = reading.grid if seen == reading.grid else None

    def reading(self, shape: tuple[int, ...], arguments: Mapping[str, Any]) -> Reading | None:
        """Return how to read latents; None for tokens of which nothing tells the grid."""
        if self.axes != "bsc":
            return read_sized(self.axes, shape)
        count, (height, width) = shape[1], (arguments.get(n) for n in ("height", "width"))
        grid = self.grids.get(count)
        if isinstance(height, int) and isinstance(width, int):
            rows, columns = int(height / self.stride), int(width / self.stride)
            if rows * columns and count % (rows * columns) == 0:
                grid = Grid(count // (rows * columns), rows, columns)
        return None if grid is None else Reading("bsc", grid)


class Previews:
    """What one instance of an entry has learned. Safe to use from several threads.

    log: gets a line when there are previews from now on, and a traceback if they fail.
    """

    def __init__(self, is_video: bool, log: Callable[[str], None]) -> None:
        self._is_video = is_video
        self._log = log
        self._known: dict[tuple[int, str, int], _Known] = {}
        """By the scheduler's number, axes and channels."""
        self._lessons = 0
        self._broken = ""
        self._told = False
        self._lock = threading.Lock()

    @property
    def is_learning(self) -> bool:
        """Whether the next finished call is one to learn from."""
        return self._lessons < LESSONS and not self._broken

    def learn(self, steps: list[SchedulerStep], value: Any) -> None:
        """Learn from a finished call. value: the pictures or videos that the pipeline returned."""
        pictures = self._pictures(value)
        if pictures is None or is_flat(pictures[:, pictures.shape[1] // 2]):
            return
        with self._lock:
            self._lessons += 1
            for step in steps:
                self._learn_from(step.number, step.latents, pictures)
            best = max(self._known.values(), key=lambda k: k.colours.score, default=None)
            if best and best.colours.score >= MIN_SCORE and not self._told:
                self._told = True
                self._log(f"previews from now on: a linear map explains {_percent(best)}")

    def paint(self, steps: list[SchedulerStep], arguments: Mapping[str, Any]) -> Array | str:
        """Return a picture for each output, uint8 [B, H, W, 3], or why there are none."""
        if self._broken:
            return f"no previews: {self._broken} (in the server's log)"
        if not self._lessons:
            return NONE_YET
        why = "no previews: the pipeline's latents are no grid of places that fits its pictures"
        for step in steps:
            shape = tuple(step.latents.shape)
            for known in self._fitting(step.number, shape):
                if known.colours.score < MIN_SCORE:
                    why = f"no previews: a linear map explains only {_percent(known)}"
                elif reading := known.reading(shape, arguments):
                    return known.colours.paint(reading.middle(step.clean))
                else:
                    why = (
                        "no previews: the size of the pictures is not known; send height and width"
                    )
        return why

    def fail(self, error: Exception) -> None:
        """End previews after an error of ours, which no request must feel; it is logged once."""
        if not self._broken:
            self._log(f"previews are off: {''.join(traceback.format_exception(error))}")
        self._broken = one_line(error)

    def _fitting(self, number: int, shape: tuple[int, ...]) -> list[_Known]:
        """Return what is known of a scheduler's latents of a shape, the best map first."""
        with self._lock:
            fitting = [
                known
                for (of, axes, channels), known in self._known.items()
                if of == number and len(axes) == len(shape) and shape[axes.index("c")] == channels
            ]
        return sorted(fitting, key=lambda known: -known.colours.score)

    def _pictures(self, value: Any) -> Array | None:
        """Return uint8 [N, F, H, W, 3]; None where the outputs have different sizes."""
        read = read_pictures(value)
        if len({picture.shape for picture in read}) != 1:
            return None
        pictures = np.stack(read)
        if pictures.ndim == 4:
            pictures = pictures[None] if self._is_video else pictures[:, None]
        return np.repeat(pictures, 3, -1) if pictures.shape[-1] == 1 else pictures[..., :3]

    def _learn_from(self, number: int, latents: Any, pictures: Array) -> None:
        best: dict[str, tuple[float, Reading]] = {}
        for reading in readings(tuple(latents.shape), pictures.shape):
            trial = _new(reading, latents, pictures)
            trial.learn(reading, latents, pictures)
            score = trial.colours.score
            if reading.axes not in best or score > best[reading.axes][0]:
                best[reading.axes] = score, reading
        for axes, (_, reading) in best.items():
            made = _new(reading, latents, pictures)
            known = self._known.setdefault((number, axes, made.colours.channels), made)
            known.learn(reading, latents, pictures)


def _new(reading: Reading, latents: Any, pictures: Array) -> _Known:
    channels = latents.shape[reading.axes.index("c")]
    patch = patch_size(channels, reading.grid, pictures.shape[2])
    return _Known(reading.axes, ColourMap(channels, patch))


def _percent(known: _Known) -> str:
    latents = f"{known.axes} latents with {known.colours.channels} channels"
    return f"{max(0.0, known.colours.score):.0%} of what {latents} look like"


class CallPreviews:
    """One call: watches its latents, paints them, and learns from it when it has finished.

    Does nothing where previews are off (None), or neither wanted nor to be learned.
    """

    def __init__(
        self, previews: Previews | None, arguments: Mapping[str, Any], wanted: bool
    ) -> None:
        self._previews = previews
        self._arguments = arguments
        self.wanted = wanted and previews is not None
        self._latents = Latents()
        self._painted: tuple[SchedulerStep | None, Array | str] = (None, "")
        self._made = False

    @contextmanager
    def watching(self, pipeline: Any) -> Iterator[None]:
        """Watch the call's own copy of the pipeline while it is called."""
        if self._previews and (self.wanted or self._previews.is_learning):
            self._latents.watch(pipeline)
        try:
            yield
        except BaseException:
            self._latents.clear()
            raise

    def pictures(self) -> Array | None:
        """Return a picture for each output as the last step has it, uint8 [B, H, W, 3], or None."""
        if self._previews is None:
            return None
        try:
            steps = self._latents.steps()
            latest = steps[0] if steps else None
            if latest is None or latest is not self._painted[0]:
                self._painted = latest, self._previews.paint(steps, self._arguments)
        except Exception as error:
            self._previews.fail(error)
            self._painted = None, f"no previews: {one_line(error)}"
        painted = self._painted[1]
        if isinstance(painted, str):
            return None
        self._made = True
        return painted

    def finish(self, fields: Mapping[str, Any]) -> str:
        """Learn from the fields of the pipeline's output. Returns why pictures() gave none."""
        why = self._painted[1]
        names = (n for n in (*PICTURE_FIELDS, *VIDEO_FIELDS) if fields.get(n) is not None)
        name = next(names, None)
        if self._previews and self._previews.is_learning and name is not None:
            try:
                self._previews.learn(self._latents.steps(), fields[name])
            except Exception as error:
                self._previews.fail(error)
        self._latents.clear()
        self._painted = None, ""
        return why if isinstance(why, str) and not self._made else ""


def preview_files(pictures: Array, as_base64: bool) -> Array:
    """Return the `preview` tensor of pictures: JPEG files, or their base64 for JSON."""
    files = [encode.encode_image(picture, "jpeg", QUALITY) for picture in pictures]
    return np.array([base64.b64encode(f) if as_base64 else f for f in files], np.object_)
