# SPDX-License-Identifier: Apache-2.0
"""Sizes that a model turned out not to make: asked for again, they are refused before any work."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from triton_diffusers.contract import IMAGE_COUNTS, SEED
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model

Size = tuple[int, int]
"""(width, height)"""

REMEMBERED = 1024
"""Sizes kept, of all models together; the oldest is forgotten."""

FREE = ("num_inference_steps", SEED.name, *IMAGE_COUNTS)
"""Whole numbers that say nothing about the size."""


def refusal(model: Model, asked: Size, made: Size) -> ApiError:
    """Word what a model makes instead of the size that was asked for."""
    return invalid(
        f"size: '{model.name}' cannot make {asked[0]}x{asked[1]}. "
        f"Nearest size: {made[0]}x{made[1]}.",
        "size",
    )


class SizeMemory:
    """What each model made when asked for a size that it does not make."""

    def __init__(self, remembered: int = REMEMBERED):
        self._made: OrderedDict[Any, tuple[Model, Size]] = OrderedDict()
        self._remembered = remembered

    def check(self, model: Model, size: Size | None, keywords: Mapping[str, Any]) -> None:
        """Refuse a size that is known not to be made. Raises ApiError 400."""
        key = _key(model, size, keywords)
        known, made = self._made.get(key, (None, None))
        if size is not None and known == model and made is not None:
            raise refusal(model, size, made)

    def learn(
        self, model: Model, size: Size | None, keywords: Mapping[str, Any], made: Size
    ) -> None:
        """Remember what was made of a request, unless a picture in it may have decided that."""
        if size is None or size == made or any(n in keywords for n in model.media_inputs):
            return
        self._made[_key(model, size, keywords)] = (model, made)
        if len(self._made) > self._remembered:
            self._made.popitem(last=False)


def _key(model: Model, size: Size | None, keywords: Mapping[str, Any]) -> Any:
    """Requests that are alike in this get the same size: flags and whole numbers may matter."""
    settings = {n: v for n, v in keywords.items() if isinstance(v, int) and n not in FREE}
    return model.name, size, frozenset(settings.items())
