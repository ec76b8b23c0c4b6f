# SPDX-License-Identifier: Apache-2.0
"""`builder inspect`: what a model is made of and what its entry would accept."""

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.arguments import Parser, add_repository
from builder.console import warn
from builder.entries import models, repository
from builder.entries.config_pbtxt import parse_config, read_parameters
from triton_diffusers.config.options import ServeConfig, named
from triton_diffusers.contract import Tensor
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.classes import constructor_components
from triton_diffusers.pipelines.signature import entry_inputs, entry_outputs
from triton_diffusers.pipelines.weight_files import Weights, read_component, read_files

if TYPE_CHECKING:
    from triton_diffusers.loading.plan import LoadPlan

GIB = 2**30
NO_ENTRY = Path()
"""Options of the command that stand in for an entry's."""
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Component:
    """One part of a pipeline."""

    name: str
    class_name: str
    weights: Weights | None = None


def add_to(parser: Parser) -> None:
    """Show a model's components, sizes, inputs, outputs and memory estimate.

    builder inspect Qwen/Qwen-Image
    """
    add_repository(parser)
    parser.add_argument(
        "model", metavar="MODEL|NAME", help="hub id, folder, file or name of an entry"
    )
    parser.add_argument("--pipeline-class", default=None, help="instead of model_index.json's")
    parser.add_argument("--revision", default=None, help="branch, tag or commit of a hub model")
    parser.add_argument("--subfolder", default=None, help="folder inside that holds the pipeline")


def run(args: argparse.Namespace) -> int:
    """Print the tables of one model."""
    written, entry = _read_config(args)
    plan = models.plan_entry(written, entry)
    config, signature = plan.config, plan.signature
    components = read_components(plan)
    for note in _doubts(plan):
        warn(note)
    console = _console()
    console.print(f"{config.model}: {plan.cls.__name__}, {signature.modality}", highlight=False)
    console.print(_component_table(components))
    before = ", before quantization_config" if config.is_quantized else ""
    console.print(memory_estimate(components, config.dtype) + before, highlight=False)
    if entry != NO_ENTRY:
        console.print(_option_table(written))
    console.print(_tensor_table("inputs", entry_inputs(signature)))
    console.print(_tensor_table("outputs", entry_outputs(signature)))
    return 0


def _doubts(plan: "LoadPlan") -> list[str]:
    """Return what `check` would warn of, or why the model would not load."""
    from triton_diffusers.loading.features import check, check_alone

    try:
        check_alone(plan.config)
        return check(plan)
    except ConfigError as error:
        return [f"this would not load: {error}"]


def read_components(plan: "LoadPlan") -> list[Component]:
    """Return a pipeline's parts; of a single file, the file alone.

    Those of a hub model that is not on this machine are those of the constructor.
    """
    from triton_diffusers.pipelines.model_files import component_classes

    config = plan.config
    if plan.single_file:
        file = Path(plan.source)
        return [Component(file.name, "checkpoint file", read_files(file))]
    if isinstance(plan.source, str):
        cached = _cached_folder(plan.source, config)
        if cached is None:
            parts = [Component(*part) for part in constructor_components(plan.cls).items()]
            return [_as_configured(part, plan) for part in parts]
        plan = plan.fetched(cached)
    parts = [
        Component(name, text, read_component(Path(plan.source) / name, config.variant))
        for name, text in component_classes(plan.index or {}).items()
    ]
    return [_as_configured(part, plan) for part in parts]


def _as_configured(part: Component, plan: "LoadPlan") -> Component:
    """Mark a component that the entry's options replace or leave out."""
    config, family = plan.config, plan.family
    given = config.diffusers_load_kwargs or {}
    if part.name in given and given[part.name] is None:
        return Component(part.name, f"left out by diffusers_load_kwargs, was {part.class_name}")
    replaced = dict(family.replaced(config)) if family and family.replaced else {}
    if named := config.scheduler:
        name = named.get("class") or part.class_name if isinstance(named, dict) else named
        replaced["scheduler"] = f"{name} (by scheduler)"
    if part.name not in replaced:
        return part
    return dataclasses.replace(part, class_name=f"{replaced[part.name]}, was {part.class_name}")


def memory_estimate(components: Iterable[Component], dtype: str | dict[str, Any]) -> str:
    """Say how much memory the weights take once loaded.

    dtype: the option: one type, or one per component.
    """
    held = {c.name: c.weights for c in components if c.weights and c.weights.size}
    if not held:
        return "memory: unknown, the weights are not on this machine"
    parameters = sum(w.parameters for w in held.values())
    if not all(w.parameters for w in held.values()):
        size = sum(w.size for w in held.values())
        return f"memory: about {_gib(size)} as stored, plus activations"
    if isinstance(dtype, dict):
        rest = dtype.get("default", "auto")
        taken = {n: w.parameters * BYTES.get(str(dtype.get(n, rest)), 2) for n, w in held.items()}
        return f"memory: about {_gib(sum(taken.values()))} in those types, plus activations"
    names = ("bfloat16", "float32") if dtype == "auto" else (dtype,)
    sizes = " or ".join(f"{_gib(parameters * BYTES[name])} in {name}" for name in names)
    return f"memory: {_count(parameters)} parameters take {sizes}, plus activations"


def _read_config(args: argparse.Namespace) -> tuple[ServeConfig, Path]:
    """Return the config of an entry of that name, or one for a model that has no entry."""
    folder = Path(args.repository) / args.model
    if (folder / repository.CONFIG).is_file():
        message = parse_config(repository.read_config_text(folder), str(folder / repository.CONFIG))
        config = ServeConfig.from_parameters(read_parameters(message))
    else:
        folder = NO_ENTRY
        config = ServeConfig(model=_model(args.model, Path(args.repository)))
    changes = {n: getattr(args, n) for n in named("inspected") if getattr(args, n)}
    return dataclasses.replace(config, **changes), folder


def _model(model: str, folder: Path) -> str:
    try:
        # no entry: nothing is relative to it
        return models.model_parameter(model, Path("/nowhere"))
    except ConfigError as error:
        names = ", ".join(repository.entry_names(folder)) if folder.is_dir() else "none"
        raise ConfigError(f"{error}; entries in '{folder}': {names}") from None


def _cached_folder(model: str, config: ServeConfig) -> Path | None:
    """Return the folder of a hub model in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache

    from triton_diffusers.pipelines.model_files import INDEX

    index = INDEX if config.subfolder is None else f"{config.subfolder}/{INDEX}"
    cached = try_to_load_from_cache(model, index, revision=config.revision)
    return Path(cached).parent if isinstance(cached, str) else None


def _console() -> Any:
    from rich.console import Console

    # a pipe has no width: leave room so that nothing is cut
    return Console(width=None if sys.stdout.isatty() else 140)


def _component_table(components: Iterable[Component]) -> Any:
    table = _table("component", "class", "size", "dtype", "parameters")
    for c in components:
        weights = c.weights or Weights()
        table.add_row(
            c.name,
            c.class_name,
            ("-" if c.weights else "unknown") if not weights.size else _size(weights.size),
            ", ".join(weights.dtypes),
            f"{weights.parameters:,}" if weights.parameters else "",
        )
    return table


def _option_table(config: ServeConfig) -> Any:
    """Return the parameters of an entry, beside the model's name."""
    from rich.text import Text

    table = _table("parameter", "value")
    for name, text in config.to_parameters().items():
        if name != "model":
            table.add_row(name, Text(text))
    return table


def _tensor_table(title: str, tensors: Iterable[Tensor]) -> Any:
    table = _table(title, "type", "dims", "about")
    for t in tensors:
        table.add_row(t.name, t.data_type, ", ".join(map(str, t.dims)), t.about)
    return table


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.3g} billion"
    return f"{parameters / 1e6:.3g} million"


def _size(size: int) -> str:
    return _gib(size) if size >= GIB // 10 else f"{size / 2**20:.2f} MiB"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"
