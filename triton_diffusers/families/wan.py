# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2: two load-time settings, and 16 frames a second."""

from typing import Any

from triton_diffusers.families import Family


def _load_kwargs(config: Any) -> dict[str, Any]:
    ratio = config.boundary_ratio
    return {} if ratio is None else {"boundary_ratio": ratio}


def _after_load(pipeline: Any, config: Any) -> None:
    """Rebuild the scheduler as UniPC with the flow shift asked for, as Wan's model cards do."""
    if config.flow_shift is None:
        return
    from diffusers import UniPCMultistepScheduler

    pipeline.scheduler = UniPCMultistepScheduler.from_config(
        pipeline.scheduler.config, flow_shift=config.flow_shift
    )


FAMILY = Family(
    name="wan",
    pipelines=("Wan*",),
    options=("boundary_ratio", "flow_shift"),
    option_needs={"boundary_ratio": "transformer_2"},
    load_kwargs=_load_kwargs,
    after_load=_after_load,
    fps=16,
)
