# SPDX-License-Identifier: Apache-2.0
"""CLIP text encoders as diffusers asks for them, whichever transformers made them.

Since transformers 5.6 `CLIPTextModel` has its layers directly, where it had them in `text_model`:
`clip_skip` of diffusers' pipelines still looks there.
"""

from typing import Any

WRAPPER = "text_model"


def answer_to_text_model(pipeline: Any) -> None:
    """Let the flat CLIP text encoders of a pipeline be found as their own `text_model`."""
    for component in pipeline.components.values():
        if type(component).__name__ == "CLIPTextModel" and is_flat(component):
            vars(component)[WRAPPER] = component  # no submodule: names of weights stay


def is_flat(text_encoder: Any) -> bool:
    """Tell whether a text encoder has its layers directly, not in `text_model`."""
    return WRAPPER not in getattr(text_encoder, "_modules", {WRAPPER})
