# SPDX-License-Identifier: Apache-2.0
"""LoRA weights of CLIP text encoders, named as the installed diffusers and transformers need them.

diffusers knows kohya's files by the output projection of their attention: files that train the
others alone do not load. Where the layers have different alphas it loses them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from triton_diffusers.pipelines.clip import WRAPPER, is_flat

LAYERS = {
    f".to_{name}_lora.": f".{name}_proj.lora_linear_layer." for name in ("q", "k", "v", "out")
}
"""What diffusers makes of kohya's names -> the names that it loads, whatever else is there."""
METHOD = "load_lora_into_text_encoder"


@contextlib.contextmanager
def named_for(pipeline: Any) -> Iterator[None]:
    """Let load_lora_weights() of a pipeline give its text encoders weights that they know."""
    load = getattr(pipeline, METHOD, None)
    if load is None:
        yield
        return

    def renamed(state_dict: Any, network_alphas: Any, text_encoder: Any, **kwargs: Any) -> Any:
        flat = is_flat(text_encoder)
        alphas = network_alphas and _renamed(network_alphas, flat)
        load(_renamed(state_dict, flat), alphas, text_encoder, **kwargs)

    vars(pipeline)[METHOD] = renamed
    try:
        yield
    finally:
        del vars(pipeline)[METHOD]


def _renamed(weights: Mapping[str, Any], flat: bool) -> dict[str, Any]:
    """Return weights, or their alphas, under new names. flat: the encoder has no `text_model`."""
    return {_new_name(name, flat): value for name, value in weights.items()}


def _new_name(name: str, flat: bool) -> str:
    if not name.startswith("text_encoder"):
        return name
    for old, new in LAYERS.items():
        name = name.replace(old, new)
    return name.replace(f".{WRAPPER}.", ".", 1) if flat else name
