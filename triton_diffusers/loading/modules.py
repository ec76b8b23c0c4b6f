# SPDX-License-Identifier: Apache-2.0
"""Options that change modules in place: VAE slicing and tiling, formats, `torch_compile`."""

from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.arguments import dtype_of
from triton_diffusers.loading.plan import Loading, LoadPlan
from triton_diffusers.pipelines.denoisers import denoisers

CONVOLUTIONAL = ("unet", "vae", "controlnet", "image_unet", "prior", "decoder", "vqvae", "vqgan")
"""Components that may hold two-dimensional convolutions, which channels_last is for."""
OFF, REGIONAL, FULL = "off", "regional", "full"


def check_memory_options(config: ServeConfig) -> None:
    """Raise ConfigError for what cannot be combined."""
    if config.layerwise_casting and config.is_quantized:
        raise ConfigError(
            "parameter 'layerwise_casting' cannot be combined with 'quantization_config': it "
            "would cut the scales of quantized weights to 8 bits too; remove one of them"
        )


def enable_vae_options(pipeline: Any, plan: LoadPlan, loading: Loading) -> dict[str, Any]:
    """Turn slicing and tiling on. Raises ConfigError for a vae that has none."""
    for option, method in (
        ("vae_use_slicing", "enable_slicing"),
        ("vae_use_tiling", "enable_tiling"),
    ):
        if not getattr(plan.config, option):
            continue
        enable = getattr(getattr(pipeline, "vae", None), method, None)
        if enable is None:
            raise _no_effect(option, pipeline, f"its vae has no {method}()")
        try:
            enable()
        except NotImplementedError:
            raise _no_effect(option, pipeline, f"its vae cannot do {method}()") from None
    return {}


def cast_layerwise(pipeline: Any, plan: LoadPlan, loading: Loading) -> dict[str, Any]:
    """Store the denoisers' weights in 8 bits; return their names."""
    import torch

    if plan.config.layerwise_casting is None:
        return {}
    storage, dtype = getattr(torch, plan.config.layerwise_casting), dtype_of(plan.load_kwargs)
    cast = []
    for name, module in denoisers(pipeline).items():
        if not hasattr(module, "enable_layerwise_casting"):
            continue
        module.enable_layerwise_casting(storage_dtype=storage, compute_dtype=dtype(name))
        if any(p.dtype is storage for p in module.parameters()):
            cast.append(name)
    if not cast:
        raise _no_effect("layerwise_casting", pipeline, "it has no denoiser whose layers it casts")
    return {"layerwise_casting": cast}


def use_channels_last(pipeline: Any, plan: LoadPlan, loading: Loading) -> dict[str, Any]:
    """Give convolutional components the memory format channels_last; return their names."""
    import torch

    if not plan.config.channels_last:
        return {}
    changed = []
    for name in CONVOLUTIONAL:
        module = getattr(pipeline, name, None)
        if isinstance(module, torch.nn.Module) and _has_only_flat_convolutions(module):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            changed.append(name)
    if not changed:
        raise _no_effect("channels_last", pipeline, "it has no component of 2D convolutions alone")
    return {"channels_last": changed}


def _has_only_flat_convolutions(module: Any) -> bool:
    """Tell whether weights have at most four axes: torch has no channels_last for five."""
    axes = {parameter.dim() for parameter in module.parameters()}
    return 4 in axes and max(axes) == 4


def _no_effect(option: str, pipeline: Any, why: str) -> ConfigError:
    return ConfigError(
        f"parameter '{option}' has no effect on {type(pipeline).__name__}: {why}; remove it"
    )


def compile_denoisers(pipeline: Any, plan: LoadPlan, loading: Loading) -> dict[str, Any]:
    """Mark the denoisers for compilation, which happens in their first calls; return their names.

    Raises ConfigError where nothing can be compiled in the way asked for.
    """
    if plan.config.torch_compile == OFF:
        return {}
    found = denoisers(pipeline)
    if plan.config.torch_compile == FULL:
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
    return {"compiled": done}


def _compile_blocks(module: Any) -> bool:
    """Compile the blocks that diffusers lists for a model's class; tell whether there are any."""
    names = getattr(module, "_repeated_blocks", None)
    if not names or not any(type(part).__name__ in names for part in module.modules()):
        return False
    module.compile_repeated_blocks()
    return True
