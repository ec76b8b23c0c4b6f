# SPDX-License-Identifier: Apache-2.0
"""The devices that an entry names, checked before anything is loaded."""

import resource
from typing import Any

from triton_diffusers.errors import ConfigError


def check_device(option: str, name: str) -> None:
    """Raise ConfigError where torch does not know a device or does not see it."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"parameter '{option}': '{name}' is no device; use cpu, cuda or cuda:0"
        ) from None
    if device.type != "cuda":
        return
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(
            f"parameter '{option}': '{name}' is not there: torch {torch.__version__} sees {count} "
            "GPUs; use cpu, another number, or a torch built for this GPU"
        )


def use_device(name: str) -> None:
    """Make a GPU the process's current one, before anything allocates memory on another.

    Libraries that name no device (kernels, `device_map`) would all meet on the first GPU.
    """
    import torch

    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def forget_peak(name: str) -> None:
    """Let the peak of a GPU's memory begin anew."""
    for module, device in _with_peak(name):
        module.reset_peak_memory_stats(device)


def peak_memory_bytes(name: str) -> int:
    """Return the most memory that torch had on the GPU; on a CPU what the process had."""
    devices = _with_peak(name)
    if devices:
        return sum(int(module.max_memory_allocated(device)) for module, device in devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux tells KiB


def _with_peak(name: str) -> list[tuple[Any, int]]:
    """Return torch's modules and numbers of the devices that `name` may stand for, on a GPU."""
    import torch

    device = torch.device(name)
    if device.type not in ("cuda", "xpu"):
        return []
    module = torch.get_device_module(device)
    numbers = range(module.device_count()) if device.index is None else [device.index]
    return [(module, number) for number in numbers]


def free_cached(name: str) -> None:
    """Give back the memory of a device that torch keeps for later, after a call that ran out."""
    import torch

    device = torch.device(name)
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
