# SPDX-License-Identifier: Apache-2.0
"""Where the weights of a pipeline live: on its device, in host memory, or spread over GPUs.

Offload hooks are installed before anything is moved, so that the device never holds the whole
pipeline. One row of `PLACEMENTS` is one way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, one_line


@dataclass(frozen=True)
class Placement:
    """One way to place a pipeline, and what it cannot be combined with."""

    option: str
    about: str
    apply: Callable[[Any, ServeConfig, str], None]
    """(pipeline, config, device)."""
    not_with: tuple[tuple[str, str], ...] = ()
    """(option, reason)."""


def _model_offload(pipeline: Any, config: ServeConfig, device: str) -> None:
    pipeline.enable_model_cpu_offload(device=device)


def _sequential_offload(pipeline: Any, config: ServeConfig, device: str) -> None:
    pipeline.enable_sequential_cpu_offload(device=device)


def _group_offload(pipeline: Any, config: ServeConfig, device: str) -> None:
    """Offload by groups; on CUDA the next group is fetched on a stream of its own."""
    import torch

    pipeline.enable_group_offload(
        onload_device=torch.device(device),
        offload_device=torch.device("cpu"),
        offload_type=config.enable_group_offload,
        num_blocks_per_group=1 if config.enable_group_offload == "block_level" else None,
        use_stream=device.startswith("cuda"),
    )


def _mapped(pipeline: Any, config: ServeConfig, device: str) -> None:
    """Do nothing: from_pretrained() has placed the components."""


SIDE_BY_SIDE = ("step_batching", "calls that run side by side would move each other's weights")
PLACEMENTS = (
    Placement("enable_cpu_offload", "components in turn", _model_offload, not_with=(SIDE_BY_SIDE,)),
    Placement(
        "enable_layerwise_offload",
        "layers in turn",
        _sequential_offload,
        not_with=(
            (
                "quantization_config",
                "its hooks take no quantized tensors, enable_cpu_offload and enable_group_offload "
                "do",
            ),
            ("torch_compile", "its hooks move weights inside of what would be compiled"),
            ("layerwise_casting", "both replace the weights while a layer runs"),
            SIDE_BY_SIDE,
        ),
    ),
    Placement(
        "enable_group_offload",
        "groups of layers in turn",
        _group_offload,
        not_with=(SIDE_BY_SIDE,),
    ),
    Placement(
        "device_map",
        "components spread over devices",
        _mapped,
        not_with=(
            ("device", "it places the components itself"),
            ("channels_last", "it has placed the weights before their format can change"),
        ),
    ),
)


def choose_placement(config: ServeConfig) -> Placement | None:
    """Return the row that an entry asks for, or None: everything on the device.

    Raises ConfigError for two ways at once, and for what one of them cannot be combined with.
    """
    asked = [row for row in PLACEMENTS if _is_set(config, row.option)]
    if len(asked) > 1:
        names = " and ".join(f"'{row.option}'" for row in asked)
        raise ConfigError(f"parameters {names} both place the weights: keep one of them")
    if not asked:
        return None
    for option, reason in asked[0].not_with:
        if _is_set(config, option):
            raise ConfigError(
                f"parameter '{asked[0].option}' cannot be combined with '{option}': {reason}; "
                "remove one of them"
            )
    return asked[0]


def check_placement(config: ServeConfig, device: str) -> Placement | None:
    """Return the row as `choose_placement`. Raises ConfigError where this device rules it out."""
    row = choose_placement(config)
    if row is not None and device == "cpu":
        raise ConfigError(
            f"parameter '{row.option}' needs a GPU, and this instance runs on the CPU: remove it, "
            "or serve the entry where Triton sees a GPU"
        )
    if config.gpu_lock is not None and config.step_batching:
        raise ConfigError(
            "parameters 'gpu_lock' and 'step_batching' cannot be used together: one lets a call "
            "run alone, the other lets calls run side by side; choose one (request_batching goes "
            "with gpu_lock)"
        )
    return row


def place(pipeline: Any, row: Placement | None, config: ServeConfig, device: str) -> str:
    """Put a pipeline where it runs; return how, for the log.

    Raises ConfigError for a pipeline that cannot be placed that way.
    """
    if row is None:
        if device != "cpu" and getattr(pipeline, "hf_device_map", None) is None:
            pipeline.to(device)
            _check_placed(pipeline, device)
        return device
    try:
        row.apply(pipeline, config, device)
    except (ValueError, ImportError, NotImplementedError, AttributeError) as error:
        raise ConfigError(
            f"parameter '{row.option}' cannot be used with {type(pipeline).__name__}: "
            f"{one_line(error)}"
        ) from None
    return f"{device}, {row.about} ({row.option})"


def _check_placed(pipeline: Any, device: str) -> None:
    """Raise ConfigError for weights elsewhere: adapters and quantizers can leave some behind."""
    import torch

    wanted = torch.device(device).type
    for name, component in pipeline.components.items():
        found = {p.device.type for p in getattr(component, "parameters", tuple)()}
        if found - {wanted}:
            raise ConfigError(
                f"component '{name}' has weights on {', '.join(sorted(found))} after the pipeline "
                f"was moved to {device}; remove lora or quantization_config"
            )


def _is_set(config: ServeConfig, option: str) -> bool:
    if option == "quantization_config":
        return config.is_quantized
    return getattr(config, option) not in (None, False, "off")
