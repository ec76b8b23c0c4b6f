# SPDX-License-Identifier: Apache-2.0
"""Arguments of a quick call that most pipelines share."""

from __future__ import annotations

from typing import Any

SIZE = ("height", "width")
# With fewer steps the first one starts from pure noise, which hides the picture.
REPAINT = {"strength": 0.6, "num_inference_steps": 4}


def picture_call(*left_out: str, **changes: Any) -> dict[str, Any]:
    """One picture of 48 x 32 in two steps, without the arguments named in `left_out`."""
    arguments = {
        **{"prompt": "a red fox in the snow", "negative_prompt": "blurry", "height": 32},
        **{"width": 48, "num_inference_steps": 2, "guidance_scale": 3.5},
    }
    return _changed(arguments, left_out, changes)


def video_call(*left_out: str, **changes: Any) -> dict[str, Any]:
    """Five frames of 32 x 16 in two steps, without the arguments named in `left_out`."""
    arguments = {
        **{"prompt": "a kite over a field", "negative_prompt": "static", "height": 16, "width": 32},
        **{"num_frames": 5, "num_inference_steps": 2, "guidance_scale": 4.0},
        "max_sequence_length": 32,
    }
    return _changed(arguments, left_out, changes)


def _changed(
    arguments: dict[str, Any], left_out: tuple[str, ...], changes: dict[str, Any]
) -> dict[str, Any]:
    kept = {name: value for name, value in arguments.items() if name not in left_out}
    return kept | changes
