# SPDX-License-Identifier: Apache-2.0
"""`torch_compile`: compile a pipeline's denoisers, block by block or whole."""

from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.denoisers import denoisers

OFF, REGIONAL, FULL = "off", "regional", "full"


def compile_denoisers(pipeline: Any, config: ServeConfig) -> list[str]:
    """Mark the denoisers for compilation, which happens in their first calls; return their names.

    Raises ConfigError where nothing can be compiled in the way asked for.
    """
    if config.torch_compile == OFF:
        return []
    found = denoisers(pipeline)
    if config.torch_compile == FULL:
        for module in found.values():
            module.compile()
        done = list(found)
    else:
        done = [name for name, module in found.items() if _compile_blocks(module)]
    if not done:
        raise ConfigError(
            f"parameter 'torch_compile': {type(pipeline).__name__} has no denoiser with repeated "
            "blocks; use full, or off"
        )
    return done


def _compile_blocks(module: Any) -> bool:
    """Compile the blocks that diffusers lists for a model's class; tell whether there are any."""
    names = getattr(module, "_repeated_blocks", None)
    if not names or not any(type(part).__name__ in names for part in module.modules()):
        return False
    module.compile_repeated_blocks()
    return True
