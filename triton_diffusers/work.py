# SPDX-License-Identifier: Apache-2.0
"""How much work a call asks for: steps x megapixels x frames x outputs, in megapixel-steps.

Each of these has a limit of its own (calls/limits.py); together they could still take days.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import MEDIA, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.signature import Signature

STEPS = "num_inference_steps"
MORE_STEPS = re.compile(rf"^\w+_{STEPS}$|^steps$")
INSTEAD_OF_STEPS = ("timesteps", "sigmas")
FRAMES = ("num_frames", "frames", "video_length")
COPIES = ("layers", "ensemble_size")
"""Arguments that multiply the work of every output: layers to separate, members of an ensemble."""
USUAL_SIZE, SMALL_SIZE = (1024, 1024), (256, 256)
"""Height and width that only the model knows: where the pipeline takes sizes, and where not."""


@dataclass(frozen=True)
class Work:
    """What a call asks for. What neither the request nor the signature tells is 1."""

    steps: int
    height: int
    width: int
    frames: int
    outputs: int

    @property
    def megapixel_steps(self) -> float:
        """Return the work as one number."""
        return math.prod((self.steps, self.height, self.width, self.frames, self.outputs)) / 1e6


def check_work(work: Work, config: ServeConfig) -> None:
    """Raise RequestError for a call that is too much in all."""
    amount = work.megapixel_steps
    if amount > config.max_work:
        raise RequestError(
            f"{amount:.0f} megapixel-steps in all ({work.steps} steps x {work.width} x "
            f"{work.height} pixels x {work.frames} frames x {work.outputs} outputs); at most "
            f"{config.max_work} are accepted (max_work of the entry); ask for less of one of them"
        )


def read_work(kwargs: Mapping[str, Any], signature: Signature, outputs: int | None) -> Work:
    """Return what a call asks for: from its arguments, else from the defaults of `__call__`.

    kwargs: by the names of `__call__`. A size that is in neither is that of the largest picture or
    frame that was sent, at least USUAL_SIZE where the pipeline takes sizes, else SMALL_SIZE where
    none was sent; frames are at least those that were sent.
    outputs: None where only the pipeline knows.
    """
    given = {p.argument: p.default for p in signature.parameters.values()} | dict(kwargs)
    instead = [len(given[n]) for n in INSTEAD_OF_STEPS if isinstance(given.get(n), list | tuple)]
    steps = max(instead) if instead else _number(given.get(STEPS))
    steps += sum(_number(value) for name, value in given.items() if MORE_STEPS.search(name))
    height, width = _number(given.get("height")), _number(given.get("width"))
    if not (height and width):
        sizes = list(_sizes(kwargs, signature))
        if "height" in given:
            sizes.append(USUAL_SIZE)  # edits resize small pictures to it
        tallest, widest = max(sizes, key=math.prod, default=SMALL_SIZE)
        height, width = height or tallest, width or widest
    videos = [
        len(kwargs[p.argument])
        for p in signature.parameters.values()
        if p.kind is Kind.VIDEO and isinstance(kwargs.get(p.argument), list | tuple)
    ]
    frames = max(1, *videos, *(_number(given.get(name)) for name in FRAMES))
    copies = math.prod(max(1, _number(given.get(name))) for name in COPIES)
    return Work(max(steps, 1), height, width, frames, (outputs or 1) * copies)


def _number(value: Any) -> int:
    """Return a number as a whole one, 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number else 0


def _sizes(kwargs: Mapping[str, Any], signature: Signature) -> Iterator[tuple[int, int]]:
    """Return height and width of every picture and frame that was sent."""
    for p in signature.parameters.values():
        value = kwargs.get(p.argument) if p.kind in MEDIA else None
        for picture in value if isinstance(value, list | tuple) else (value,):
            size = getattr(picture, "size", None)
            if isinstance(size, tuple) and len(size) == 2:  # of Pillow: width first
                yield size[1], size[0]
