# SPDX-License-Identifier: Apache-2.0
"""Which components of a pipeline denoise: they run once a step, and take nearly all of its time."""

from collections.abc import Iterator, Mapping
from typing import Any

NAMES = (
    "transformer",
    "transformer_2",
    "unconditional_transformer",
    "unet",
    "image_unet",
    "text_unet",
    "prior",
    "prior_prior",
    "decoder",
    "super_res_first",
    "super_res_last",
    "diffusion_decoder",
    "model",
    "controlnet",
)
"""The names that diffusers' pipelines give their denoisers, the main one of a pipeline first.

A test holds them against the constructors of every pipeline of the installed diffusers. T2I
adapters and latent upsamplers run once a call, so they are none.
"""


def denoisers(pipeline: Any) -> dict[str, Any]:
    """Return the denoisers of a pipeline by name; of several controlnets each one (controlnet.0).

    A denoiser that two names share is listed once.
    """
    components: Mapping[str, Any] = pipeline.components
    found: dict[str, Any] = {}
    for name in NAMES:
        for part, module in _parts(name, components.get(name)):
            if all(module is not other for other in found.values()):
                found[part] = module
    return found


def text_encoders(pipeline: Any) -> dict[str, Any]:
    """Return the text encoders of a pipeline by name, but for those with adapters."""
    components: Mapping[str, Any] = pipeline.components
    return {
        name: component
        for name, component in components.items()
        if name.startswith("text_encoder") and _is_module(component)
        # pipelines scale the layers of adapters around their call
        if not getattr(component, "peft_config", None)
    }


def _parts(name: str, component: Any) -> Iterator[tuple[str, Any]]:
    """Take apart what holds several controlnets: diffusers' Multi...ControlNetModel, or a list."""
    import torch

    nets = component if isinstance(component, list | tuple) else getattr(component, "nets", None)
    if nets is not None:
        yield from ((f"{name}.{i}", n) for i, n in enumerate(nets) if _is_module(n))
    elif isinstance(component, torch.nn.Module):
        yield name, component


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)
