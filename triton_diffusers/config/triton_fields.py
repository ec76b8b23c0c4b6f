# SPDX-License-Identifier: Apache-2.0
"""What an entry's config.pbtxt may say: an allow-list of Triton's fields, each with its values.

Triton takes many more, and acts on few of them as an operator would expect: `execute()` returns at
once, requests are no batches, and answers are not to be kept. `builder check` and the load hold an
entry against the same list. The text tells what was written; what Triton hands to `initialize` has
all its defaults filled in, and is what counts where a load request brings a configuration.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_diffusers.config.pbtxt import written
from triton_diffusers.errors import ConfigError

BACKEND = "python"
TENSOR = ("name", "data_type", "dims")
ALLOWED: dict[str, Any] = {
    "name": None,
    "backend": None,
    "max_batch_size": None,
    "input": dict.fromkeys((*TENSOR, "optional")),
    "output": dict.fromkeys(TENSOR),
    "instance_group": dict.fromkeys(("name", "count", "kind", "gpus")),
    "model_transaction_policy": {"decoupled": None},
    "parameters": {"key": None, "value": {"string_value": None}},
}
"""Field -> the fields inside of it; None for one that holds a plain value."""

NO_BATCH = "requests are no batches, and tensors go to the pipeline as they are sent"
PLACED = "where the pipeline runs is said by kind, gpus and the parameter 'device'"
CODE = "an entry runs 1/model.py on the Python backend and nothing else"
REASONS = {
    "response_cache": "an error would be kept as an empty success, and calls without a seed would "
    "all get one picture",
    "rate_limiter": "Triton counts a call as over once it is taken, so nothing would be limited; "
    "an instance runs one call at a time by itself",
    "dynamic_batching": "it delays requests and joins none; set the parameter 'request_batching' "
    "or 'step_batching', and 'max_queue' for the queue, instead",
    "sequence_batching": "requests do not depend on each other, and it would bind callers to "
    "instances",
    "ensemble_scheduling": "an entry is a model by itself; give the ensemble a folder of its own "
    "that names this entry as a step",
    "model_warmup": "its requests do not pass through an entry's queue, and the load fails; set "
    "the parameter 'warmup' instead",
    "version_policy": "an entry has one version, 1",
    "default_model_filename": CODE,
    "cc_model_filenames": CODE,
    "platform": CODE,
    "runtime": CODE,
    "model_operations": CODE,
    "optimization": "the Python backend does none of it; set the parameters 'torch_compile' or "
    "'attention_backend', or a request's queue_priority, instead",
    "reshape": NO_BATCH,
    "allow_ragged_batch": NO_BATCH,
    "is_shape_tensor": NO_BATCH,
    "is_non_linear_format_io": NO_BATCH,
    "format": NO_BATCH,
    "label_filename": "an entry classifies nothing",
    "batch_input": NO_BATCH,
    "batch_output": NO_BATCH,
    "host_policy": PLACED,
    "secondary_devices": PLACED,
    "profile": PLACED,
    "passive": "an instance that gets no requests would load the model for nothing",
    "metric_tags": "the metrics of the runtime do not carry them",
    "model_metrics": "Triton's own latencies tell nothing here; the runtime has metrics of its own",
    "model_repository_agents": "an entry is loaded as it lies in its folder",
}
"""Field of Triton's -> why an entry must not have it."""

PRESENT = ("version_policy", "dynamic_batching", "sequence_batching", "ensemble_scheduling")
"""Fields that act by being there, however empty."""
FILLED: dict[str, tuple[Any, ...]] = {
    "version_policy": ({"latest": {"num_versions": 1}},),
    "default_model_filename": ("model.py",),
    "format": ("FORMAT_NONE",),
}
"""What Triton fills in where nothing was written, beside what is empty. `optimization`, whose
defaults differ by version, is looked for in the text alone."""


def check_text(text: str) -> None:
    """Raise ConfigError, with an argument for each thing that is wrong, for text of config.pbtxt.

    The text must be a configuration that Triton's schema reads.
    """
    if problems := [*_problems(written(text), filled=False)]:
        raise ConfigError(*problems)


def check_loaded(config: Mapping[str, Any], file: Path) -> None:
    """Raise ConfigError, in one line, for what is wrong in a configuration that Triton loads.

    config: as it passes it to `initialize`. file: the config.pbtxt that it may come from; a load
    request may bring another, and so may Triton's --model-config-name.
    """
    problems = [*_problems(_unfold(config), filled=True)]
    try:
        said = written(file.read_text(encoding="utf-8"))
        if _is_same(said, config):
            problems += [p for p in _problems(said, filled=False) if p not in problems]
    except (OSError, UnicodeDecodeError, ImportError):
        pass  # it comes from somewhere else, or tritonclient, which has the schema, is not here
    except ConfigError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError("; ".join(problems))


def _unfold(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with its parameters as a list, as the text has them."""
    parameters = config.get("parameters", {})
    return {**config, "parameters": [{"key": k, "value": v} for k, v in parameters.items()]}


def _is_same(said: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration comes from what a file says: the last of two keys counts."""
    values = {
        p.get("key", ""): p.get("value", {}).get("string_value", "")
        for p in said.get("parameters", [])
    }
    loaded = {k: v.get("string_value", "") for k, v in config.get("parameters", {}).items()}
    names = [[t.get("name") for t in c.get("input", [])] for c in (said, config)]
    return values == loaded and names[0] == names[1]


def _problems(config: Mapping[str, Any], filled: bool) -> Iterator[str]:
    """Yield what is wrong, a line each. filled: Triton has put its defaults in."""
    if not filled and config.get("backend") != BACKEND:
        yield f"backend is '{config.get('backend', '')}': set it to \"{BACKEND}\""
    yield from _strangers(config, ALLOWED, "", filled)
    for block in ("input", "output"):
        yield from _wrong_tensors(block, config.get(block, []))
    yield from _wrong_parameters(config.get("parameters", []))
    for group in config.get("instance_group", []):
        yield from _wrong_group(group)


def _strangers(
    given: Mapping[str, Any], allowed: Mapping[str, Any], where: str, filled: bool
) -> Iterator[str]:
    """Yield the fields that are not on the list."""
    for name, value in given.items():
        if name not in allowed:
            # a later Triton may fill in what we do not know yet
            if not filled or (name in REASONS and not _is_idle(name, value)):
                reason = REASONS.get(name, "an entry has no use for it")
                yield f"{_of(where)}field '{name}' must not be set: {reason}; remove it"
        elif allowed[name] is not None:
            for number, inner in enumerate(value if isinstance(value, list) else [value]):
                told = inner.get("name") or inner.get("key") or number + 1
                place = f"{name} '{told}'" if isinstance(value, list) else f"{where or name}"
                yield from _strangers(inner, allowed[name], place, filled)


def _of(where: str) -> str:
    return f"{where}: " if where else ""


def _is_idle(name: str, value: Any) -> bool:
    """Tell whether a value is what Triton fills in, or none."""
    if name == "optimization" or value in FILLED.get(name, ()):
        return True
    if isinstance(value, Mapping):
        return name not in PRESENT and all(_is_idle("", v) for v in value.values())
    return not value


def _wrong_tensors(block: str, tensors: list[Mapping[str, Any]]) -> Iterator[str]:
    for number, tensor in enumerate(tensors):
        name = tensor.get("name")
        told = f"{block} '{name}'" if name else f"{block} number {number + 1}"
        for field in TENSOR:
            if not tensor.get(field):
                yield f"{told} has no {field}: add it, or write the entry again with add-model"
    yield from _twice(block, [t.get("name") for t in tensors])


def _wrong_parameters(parameters: list[Mapping[str, Any]]) -> Iterator[str]:
    for parameter in parameters:
        key = parameter.get("key")
        if not key:
            yield "parameters: one has no key: name the option that it sets, or remove it"
        elif "string_value" not in parameter.get("value", {}):
            yield f"parameter '{key}' has no value: add {{ string_value: TEXT }}, or remove it"
    yield from _twice("parameter", [p.get("key") for p in parameters])


def _wrong_group(group: Mapping[str, Any]) -> Iterator[str]:
    kind, gpus = group.get("kind", "KIND_AUTO"), group.get("gpus", [])
    if (count := int(group.get("count", 1))) < 1:
        yield f"instance_group: count is {count}; set it to 1 or more"
    if gpus and kind not in ("KIND_GPU", "KIND_AUTO"):
        yield f"instance_group: kind {kind} takes no gpus; remove them, or set kind to KIND_GPU"
    if below := [gpu for gpu in gpus if int(gpu) < 0]:
        yield f"instance_group: gpus holds {below[0]}; number GPUs from 0"
    yield from _twice("instance_group: gpu", gpus)


def _twice(thing: str, names: list[Any]) -> Iterator[str]:
    for name, times in Counter(name for name in names if name is not None).items():
        if times > 1:
            yield f"{thing} '{name}' is given {times} times: keep one"
