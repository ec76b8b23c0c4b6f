# SPDX-License-Identifier: Apache-2.0
"""An entry against the installed diffusers: checked by `builder check`, checked and loaded here."""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_diffusers.calls.defaults import refuse_reserved
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.config.triton_fields import check_loaded
from triton_diffusers.contract import is_decoupled
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.load import load_planned
from triton_diffusers.loading.plan import LoadPlan, plan_load
from triton_diffusers.pipelines.classes import import_diffusers
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import adapter_inputs, entry_inputs, entry_outputs


def check_entry(model_config: Mapping[str, Any], plan: LoadPlan) -> list[str]:
    """Return what is wrong with an entry, each in one line; empty when it fits.

    model_config: config.pbtxt as a dictionary, as Triton passes it to `initialize`.
    """
    config, signature = plan.config, plan.signature
    if config.device_map is not None and (copies := _copies(model_config)) > 1:
        return [
            f"instance_group makes {copies} copies, but parameter 'device_map' places one itself: "
            "set count to 1 and remove gpus"
        ]
    decoupled = is_decoupled(model_config)
    problems = []
    if batch := int(model_config.get("max_batch_size", 0)):
        problems.append(f"max_batch_size is {batch}, it must be 0")
    of_adapters = {t.name: (t.data_type, t.dims, t.optional) for t in adapter_inputs(signature)}
    for block, expected in (
        ("input", entry_inputs(signature, decoupled)),
        ("output", entry_outputs(signature, decoupled)),
    ):
        is_input = block == "input"
        wanted = {t.name: (t.data_type, t.dims, is_input and t.optional) for t in expected}
        found = {
            t["name"]: (t["data_type"], tuple(map(int, t["dims"])), bool(t.get("optional", False)))
            for t in model_config.get(block, [])
        }
        if is_input:  # entries of earlier versions list them
            found = {n: t for n, t in found.items() if n in wanted or t != of_adapters.get(n)}
        if wanted != found:
            problems.append(_difference(block, wanted, found))
    if not problems:
        return []
    installed = import_diffusers().__version__
    written = config.diffusers_version or "an unknown version"
    where = f"written for diffusers {written}, {installed} is installed"
    name = model_config.get("name") or "NAME"
    fix = (
        "write it again with its options: "
        f"builder add-model {shlex.quote(config.model)} --name {name} --force"
    )
    return [f"the entry does not fit {plan.cls.__name__} ({where}): {'; '.join(problems)}; {fix}"]


def _copies(model_config: Mapping[str, Any]) -> int:
    """Return how many instances an entry has: `count` on each of its `gpus`."""
    groups = model_config.get("instance_group", [])
    return sum(int(g.get("count", 1)) * max(1, len(g.get("gpus", []))) for g in groups)


def _difference(block: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"lacks {', '.join(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"has {', '.join(extra)}, which the pipeline does not")
    differ = sorted(n for n in wanted.keys() & found.keys() if wanted[n] != found[n])
    told = (f"{n} as {_declared(found[n])} instead of {_declared(wanted[n])}" for n in differ)
    if differ:
        parts.append(f"declares {', '.join(told)}")
    return f"{block} {' and '.join(parts)}"


def _declared(tensor: tuple[str, tuple[int, ...], bool]) -> str:
    return f"{tensor[0]} {list(tensor[1])}{' optional' if tensor[2] else ''}"


def load_entry(
    args: Mapping[str, str], log: Callable[[str], None] = lambda text: None
) -> LoadedPipeline:
    """Load the pipeline of an entry after checking the entry; the cheapest checks come first.

    args: what Triton passes to `initialize`. log: gets progress, a line at a time. Raises
    ConfigError, in one line.
    """
    model_config = json.loads(args["model_config"])
    check_loaded(model_config, Path(args["model_repository"]) / "config.pbtxt")
    given = model_config.get("parameters", {})
    config = ServeConfig.from_parameters({k: v.get("string_value", "") for k, v in given.items()})
    refuse_reserved(config)
    device = "cpu"
    if args.get("model_instance_kind") == "GPU":
        device = f"cuda:{args['model_instance_device_id']}"
    elif (threads := _shared_threads(config, model_config)) is not None:
        log(f"{threads} torch threads: the CPU's cores are shared by the model's instances")
        config = replace(config, cpu_threads=threads)
    plan = plan_load(config, Path(args["model_repository"]), device)
    if problems := check_entry(model_config, plan):
        raise ConfigError(problems[0])
    return load_planned(plan, log, is_decoupled(model_config))


def _shared_threads(config: ServeConfig, model_config: Mapping[str, Any]) -> int | None:
    """Return how many torch threads an instance on the CPU gets where nobody has said it.

    None for one instance: torch's own number, as in plain diffusers. Several that each start a
    thread per core run many times slower than one.
    """
    instances = sum(int(g.get("count", 1)) for g in model_config.get("instance_group", []))
    if config.cpu_threads is not None or "OMP_NUM_THREADS" in os.environ or instances < 2:
        return None
    import torch

    return max(1, torch.get_num_threads() // instances)
