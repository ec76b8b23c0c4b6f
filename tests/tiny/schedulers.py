# SPDX-License-Identifier: Apache-2.0
"""Schedulers that several families share."""

from __future__ import annotations

from typing import Any


def ddim(**changes: Any) -> Any:
    """Stable Diffusion 1's noise schedule."""
    from diffusers import DDIMScheduler

    config = {
        **{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"},
        **{"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
    }
    return DDIMScheduler(**(config | changes))


def flow_match(**config: Any) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(**config)


def flow_unipc() -> Any:
    """What Wan's checkpoints come with."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
