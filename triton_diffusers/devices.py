# SPDX-License-Identifier: Apache-2.0
"""The devices that an entry names, checked before anything is loaded."""

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


def free_cached(name: str) -> None:
    """Give back the memory of a device that torch keeps for later, after a call that ran out."""
    import torch

    device = torch.device(name)
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
