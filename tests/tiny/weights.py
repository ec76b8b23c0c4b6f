# SPDX-License-Identifier: Apache-2.0
"""Seeded random weights that let every input reach the output."""

from __future__ import annotations

import math
from typing import Any, TypeVar

Model = TypeVar("Model")

# Thresholds of the safety checker: random ones would blacken pictures.
_KEPT = ("concept_embeds_weights", "special_care_embeds_weights")


def build_model(model_class: type[Any] | str, seed: int = 0, /, **config: Any) -> Any:
    """A model with random weights, in evaluation mode; diffusers has the class of a name."""
    if isinstance(model_class, str):
        import diffusers

        model_class = getattr(diffusers, model_class)
    return randomize(model_class(**config), seed)


def randomize(model: Model, seed: int = 0) -> Model:
    """Draw all weights again.

    Freshly made models hold zeros in many places (ControlNet outputs, adaptive norms, motion
    modules, padding tokens left to chance): conditions would not change the result at all.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(_KEPT):
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                drawn = noise / math.sqrt(parameter[0].numel())
            elif name.endswith("bias"):
                drawn = 0.1 * noise
            else:
                drawn = 1 + 0.1 * noise
            parameter.copy_(drawn)
    return model.eval()
