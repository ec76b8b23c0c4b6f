# SPDX-License-Identifier: Apache-2.0
"""Sizes that a model turned out not to make: asked for again, they are refused before any work.

Most pipelines make sizes that are multiples of a step, which they name in a refusal, or in a
warning when they make a smaller picture. Others make what they like; that is remembered as it was.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from triton_diffusers.contract import IMAGE_COUNTS, SEED, STEPS
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model

Size = tuple[int, int]
"""(width, height)"""

STEP = re.compile(r"\b(?:height|width)\b[^.]*\bdivisible by (\d+)", re.IGNORECASE)

LARGEST = 2**14
"""Pixels of a side beyond which a nearest size is no help."""

REMEMBERED = 1024
"""Things kept, of all models together; the oldest is forgotten."""

FREE = (STEPS, SEED.name, *IMAGE_COUNTS)
"""Whole numbers that say nothing about the size."""


def step_in(text: str) -> int | None:
    """Return what a pipeline's text says that width and height have to be divisible by."""
    found = STEP.search(text)
    return int(found[1]) or None if found else None


def nearest(size: Size, step: int) -> Size:
    """Return the size nearest to `size` whose sides are multiples of `step`, and not 0."""
    width, height = (max(1, round(side / step)) * step for side in size)
    return width, height


def refusal(model: Model, asked: Size, near: Size) -> ApiError:
    """Word what a model makes near a size that it does not make."""
    return invalid(
        f"size: '{model.name}' cannot make {asked[0]}x{asked[1]}. "
        f"Nearest size: {near[0]}x{near[1]}.",
        "size",
    )


class KnownSizes:
    """What each model is known to make, for as long as its entry stays the same."""

    def __init__(self, remembered: int = REMEMBERED):
        self._known: OrderedDict[Any, tuple[Model, Any]] = OrderedDict()
        self._remembered = remembered

    def check(self, model: Model, size: Size | None, keywords: Mapping[str, Any]) -> None:
        """Refuse a size that is known not to be made. Raises ApiError 400."""
        if size is None or not all(0 < side <= LARGEST for side in size):
            return  # the server says what its limits are
        step = self._recall(model, model.name)
        if step is not None and nearest(size, step) != size:
            raise refusal(model, size, nearest(size, step))
        made = self._recall(model, _key(model, size, keywords))
        if made is not None:
            raise refusal(model, size, made)

    def learn(
        self, model: Model, size: Size, keywords: Mapping[str, Any], made: Size, warnings: list[str]
    ) -> ApiError:
        """Remember what was made instead of `size`; return the refusal.

        Where a picture is among the inputs, it may be what decided, and only a step is remembered.
        """
        step = next(filter(None, map(step_in, warnings)), None)
        if step is not None:
            self._remember(model, model.name, step)
            if nearest(size, step) != size:
                return refusal(model, size, nearest(size, step))
        if not any(name in keywords for name in model.media_inputs):
            self._remember(model, _key(model, size, keywords), made)
        return refusal(model, size, made)

    def _recall(self, model: Model, key: Any) -> Any:
        known, value = self._known.get(key, (None, None))
        return value if known == model else None

    def _remember(self, model: Model, key: Any, value: Any) -> None:
        self._known[key] = (model, value)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)


def _key(model: Model, size: Size, keywords: Mapping[str, Any]) -> Any:
    """Requests that are alike in this get the same size: flags and whole numbers may matter."""
    settings = {n: v for n, v in keywords.items() if isinstance(v, int) and n not in FREE}
    return model.name, size, frozenset(settings.items())
