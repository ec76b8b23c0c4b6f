# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2: two load-time options, and 16 frames a second."""

from dataclasses import dataclass
from typing import Any

from triton_diffusers.errors import ConfigError
from triton_diffusers.families import Family
from triton_diffusers.families.option import option

SCHEDULER = "UniPCMultistepScheduler"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that only Wan has."""

    boundary_ratio: float | None = option(
        "Wan 2.2: where the second transformer takes over, 0 to 1.",
        minimum=0,
        maximum=1,
        fails="a model without transformer_2: refused",
        group="defaults of calls",
        argument="ours",
        tried=True,
        in_requests=True,
    )
    flow_shift: float | None = option(
        "Wan: flow shift of the UniPC scheduler.",
        minimum=0.01,
        group="defaults of calls",
        tried=True,
        in_requests=True,
    )


def _check(config: Any) -> None:
    if config.scheduler is not None and config.flow_shift is not None:
        raise ConfigError(
            "parameters 'scheduler' and 'flow_shift' both replace the scheduler: give the shift as "
            'config of the scheduler, {"class": NAME, "flow_shift": X}'
        )


def _replaced(config: Any) -> dict[str, str]:
    return {} if config.flow_shift is None else {"scheduler": f"{SCHEDULER} (by flow_shift)"}


def _load_kwargs(config: Any) -> dict[str, Any]:
    ratio = config.boundary_ratio
    return {} if ratio is None else {"boundary_ratio": ratio}


def _after_load(pipeline: Any, config: Any) -> None:
    """Rebuild the scheduler as UniPC with the flow shift asked for, as Wan's model cards do."""
    if config.flow_shift is None:
        return
    import diffusers

    pipeline.scheduler = getattr(diffusers, SCHEDULER).from_config(
        pipeline.scheduler.config, flow_shift=config.flow_shift
    )


FAMILY = Family(
    name="wan",
    pipelines=("Wan*",),
    declares=Options,
    option_needs={"boundary_ratio": "transformer_2"},
    check=_check,
    replaced=_replaced,
    load_kwargs=_load_kwargs,
    after_load=_after_load,
    fps=16,
)
