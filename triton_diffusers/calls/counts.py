# SPDX-License-Identifier: Apache-2.0
"""How many prompts, outputs and seeds a request has, and whether they fit together."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from triton_diffusers.calls import values
from triton_diffusers.contract import ANY_SEED, DRAWN_SEEDS, IMAGE_COUNTS, SEED, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.denoisers import denoisers
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import Signature

PER_PROMPT = re.compile(r"^(neg(ative)?_)?prompt(_\d)?$")
PER_NET = re.compile(r"^control(net)?_(conditioning_scale|guidance_(start|end)|mode)$")


def match_prompts(
    kwargs: dict[str, Any], loaded: LoadedPipeline, counts: dict[str, int]
) -> int | None:
    """Give every text that goes with the prompts one element per prompt.

    Many pipelines reject one negative prompt for several prompts, so one is repeated; a second
    prompt (prompt_2) likewise. Returns how many prompts there are; None without a prompt.
    """
    prompt = kwargs.get("prompt")
    if prompt is None:
        return None
    count = len(prompt) if isinstance(prompt, list) else 1
    parameters = loaded.signature.parameters
    for name, value in kwargs.items():
        p = parameters.get(name)
        if name == "prompt" or value is None or p is None or p.kind is not Kind.TEXT:
            continue
        if not PER_PROMPT.search(name):
            continue
        given = value if isinstance(value, list) else [value]
        if len(given) not in (1, count):
            of = "" if name in counts else " of the entry's diffusers_call_kwargs"
            raise RequestError(
                f"'{name}'{of} has {len(given)} elements for {count} prompts; send one, or one per "
                "prompt"
            )
        if isinstance(prompt, list):
            kwargs[name] = given if len(given) == count else given * count
        else:
            kwargs[name] = values.one_or_many(p, given)
    return count


def match_nets(kwargs: Mapping[str, Any], loaded: LoadedPipeline) -> None:
    """Raise RequestError where a list has not one element per controlnet: diffusers drops some."""
    lists = {n: v for n, v in kwargs.items() if PER_NET.search(n) and isinstance(v, list)}
    nets = (
        sum(name.startswith("controlnet.") for name in denoisers(loaded.pipeline)) if lists else 0
    )
    for name, value in lists.items():
        if nets and len(value) not in (1, nets):
            raise RequestError(
                f"input '{name}': {len(value)} elements for {nets} controlnets; send one, or one "
                "per controlnet"
            )


def read_seeds(
    inputs: Mapping[str, Array],
    kwargs: Mapping[str, Any],
    prompts: int | None,
    counts: Mapping[str, int],
    loaded: LoadedPipeline,
) -> list[int]:
    """Return the seeds as sent, each -1 and a missing one drawn. Raises RequestError.

    counts: how many pictures were sent; without prompts each gives an output.
    """
    outputs = count_outputs(kwargs, prompts, loaded.signature)
    limit = loaded.config.max_outputs
    asked = max(counts.values(), default=1) if outputs is None else outputs
    if asked > limit:
        raise RequestError(
            f"{asked} outputs were asked for; at most {limit} are accepted (max_outputs of the "
            "entry)"
        )
    if SEED.name not in inputs:
        own = kwargs.get(SEED.name)  # the entry's, for a pipeline that has the parameter
        return [_drawn_if_any(ANY_SEED if own is None else int(own))]
    seeds = values.numbers(inputs[SEED.name], SEED.name)
    if min(seeds) < ANY_SEED:
        raise RequestError(
            f"input 'seed': {min(seeds)}; send a number of at least 0, or -1 (or leave it out) to "
            "have one drawn"
        )
    if len(seeds) > 1 and outputs is not None and len(seeds) != outputs:
        raise RequestError(
            f"input 'seed': {len(seeds)} seeds for {outputs} outputs; send one, or one per output"
        )
    return [_drawn_if_any(seed) for seed in seeds]


def _drawn_if_any(seed: int) -> int:
    return secrets.randbelow(DRAWN_SEEDS) if seed == ANY_SEED else seed


def count_outputs(
    kwargs: Mapping[str, Any], prompts: int | None, signature: Signature
) -> int | None:
    """Return how many outputs a call gives; None where only the pipeline knows (from pictures)."""

    def count(name: str) -> int:
        p = signature.parameters[name]
        return int(kwargs.get(name) or p.default or 1)

    per_prompt = [count(n) for n in IMAGE_COUNTS if n in signature.parameters]
    if prompts is not None:
        return prompts * (per_prompt[0] if per_prompt else 1)
    return count("batch_size") if "batch_size" in signature.parameters else None
