# SPDX-License-Identifier: Apache-2.0
"""A decoded request -> the arguments of `__call__`.

Precedence, lowest first: the pipeline's own defaults (nothing is passed), the entry's
`diffusers_call_kwargs`, the request's inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.calls import values
from triton_diffusers.calls.counts import count_outputs, match_nets, match_prompts, read_seeds
from triton_diffusers.calls.limits import (
    Workload,
    check_area,
    check_ranges,
    check_work,
    read_work,
)
from triton_diffusers.calls.output_options import read_output_options
from triton_diffusers.calls.outputs import OutputOptions
from triton_diffusers.calls.sound import fit_sound
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.contract import (
    BYTES_SUFFIX,
    EXTRA,
    MEDIA,
    OUTPUT_BASE64,
    OUTPUT_FORMAT,
    OUTPUT_QUALITY,
    PREVIEW_EVERY,
    PROBE,
    QUEUE_PRIORITY,
    SEED,
    WIRE,
    Kind,
    is_reserved,
    reserved_hint,
)
from triton_diffusers.errors import RequestError, unknown
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import Parameter, Signature, is_of_adapter


@dataclass
class Call:
    """One call of the pipeline, ready to run."""

    kwargs: dict[str, Any]
    seeds: list[int]
    output: OutputOptions
    counts: dict[str, int] = field(default_factory=dict)
    """How many elements each text and picture input has, to explain a failure."""
    outputs: int | None = None
    """How many pictures, videos or sounds the call gives; None where only the pipeline knows."""
    work: Workload | None = None
    """What it computes."""


def read_call(inputs: Mapping[str, Array], loaded: LoadedPipeline) -> Call:
    """Read a request's input tensors. Raises RequestError saying what to send instead."""
    config, signature = loaded.config, loaded.signature
    counts: dict[str, int] = {}
    sent = _typed(inputs, loaded, counts)
    sent |= _from_extra(inputs, signature, config)
    check_ranges(sent, config)
    kwargs = _merge(sent, loaded)
    _check_required(kwargs, signature)
    match_nets(kwargs, loaded)
    prompts = match_prompts(kwargs, loaded, counts)
    seeds = read_seeds(inputs, kwargs, prompts, counts, loaded)
    if SEED.name in signature.parameters:
        # a pipeline that also has a seed of its own: a drawn one must repeat the call too
        kwargs[SEED.name] = seeds[0]
    outputs = count_outputs(kwargs, prompts, signature)
    work = read_work(kwargs, signature, outputs)
    check_area(work, config, signature)
    check_work(work, config)
    return Call(kwargs, seeds, read_output_options(inputs, kwargs, loaded), counts, outputs, work)


def refuse_parameters(parameters: Mapping[str, Any], signature: Signature) -> None:
    """Raise RequestError for a request parameter that is not ours: arguments travel as inputs."""
    for name in parameters:
        if name == QUEUE_PRIORITY or (name == PROBE and isinstance(parameters[name], bool)):
            continue
        if name == PROBE:
            raise RequestError(f"request parameter '{name}': {parameters[name]!r}; send true")
        hint = _elsewhere(name)
        if hint:
            raise RequestError(f"request parameter '{name}': {hint}")
        if name in signature.parameters or name in _OWN:
            raise RequestError(
                f"request parameter '{name}': send it as an input tensor (on /generate: of the "
                "right JSON type, a list where the input is one), not as a parameter"
            )
        accepted = (*_sendable(signature), *_OWN)
        raise RequestError(unknown("request parameter", name, signature.pipeline_class, accepted))


def read_priority(parameters: Mapping[str, Any]) -> int:
    """Return a request's priority: lower runs first, 0 unless it says so. Raises RequestError."""
    value = parameters.get(QUEUE_PRIORITY, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(
            f"request parameter '{QUEUE_PRIORITY}': {value!r}; send a whole number: lower ones "
            "run first"
        )
    return value


def names_of_media(signature: Signature) -> frozenset[str]:
    """Return the inputs that carry pictures, videos or sounds."""
    media = [p.name for p in signature.parameters.values() if p.kind in MEDIA]
    return frozenset([*media, *(name + BYTES_SUFFIX for name in media)])


_OWN = (SEED.name, EXTRA.name, OUTPUT_FORMAT.name, OUTPUT_QUALITY.name, OUTPUT_BASE64.name)
_LOAD_TIME = frozenset(option.name for option in options())


def _sendable(signature: Signature) -> list[str]:
    """Return the names that a request may carry, tensors left out and files included."""
    parameters = signature.parameters.values()
    sent = [p for p in parameters if p.kind is not Kind.TENSOR and not is_of_adapter(p)]
    files = [p.name + BYTES_SUFFIX for p in sent if p.kind in MEDIA]
    return [p.name for p in sent] + files


def _elsewhere(name: str) -> str | None:
    """Say where a name belongs that a request must not carry, or None."""
    if name == PREVIEW_EVERY.name:
        return (
            f"'{name}' is an input of entries that make pictures or video and were written with "
            "--decoupled; send it there as a tensor, over a gRPC stream or /generate_stream"
        )
    if name in _LOAD_TIME:
        return (
            f"'{name}' is a load-time setting; set it in the entry's config.pbtxt parameters and "
            "load the model again"
        )
    return f"'{name}' is reserved: {reserved_hint(name)}" if is_reserved(name) else None


def _typed(
    inputs: Mapping[str, Array],
    loaded: LoadedPipeline,
    counts: dict[str, int],
) -> dict[str, Any]:
    """Read the inputs that are parameters of the pipeline, by wire name."""
    signature, config = loaded.signature, loaded.config
    sent: dict[str, Any] = {}
    rates: dict[str, int | None] = {}
    for p in signature.on_wire:
        if p.kind in MEDIA:
            found = values.read_media(p, inputs, config)
            if found is None:
                continue
            sent[p.name], counts[p.name], rates[p.name] = found
        elif p.name in inputs and p.name != SEED.name:
            sent[p.name] = values.value_of(p, inputs[p.name], config)
            if p.kind is Kind.TEXT:
                counts[p.name] = inputs[p.name].size
    for p in signature.on_wire:
        if p.kind is Kind.AUDIO and p.name in sent:
            sound, rate = sent[p.name], rates[p.name]
            sent |= fit_sound(p, sound, rate, sent, signature, loaded.pipeline)
    return sent


def _from_extra(
    inputs: Mapping[str, Array], signature: Signature, config: ServeConfig
) -> dict[str, Any]:
    if EXTRA.name not in inputs:
        return {}
    extra = values.json_object(inputs[EXTRA.name], EXTRA.name, config)
    open_names = _sendable(signature)
    for name in extra:
        hint = _elsewhere(name)
        parameter = signature.parameters.get(name)
        if hint:
            raise RequestError(f"input 'extra': {hint}")
        if extra[name] is None and parameter is not None and not parameter.required:
            if name in inputs or name + BYTES_SUFFIX in inputs:
                raise RequestError(f"'{name}' was sent twice, once as null in 'extra'; send one")
            continue  # None is a value that only JSON can carry
        if name in _OWN or (parameter is not None and parameter.kind in WIRE):
            raise RequestError(f"input 'extra': '{name}' has an input of its own; send it there")
        if parameter is None:
            known = (*open_names, *_OWN)
            raise RequestError(
                "input 'extra': " + unknown("argument", name, signature.pipeline_class, known)
            )
        if parameter.kind is Kind.TENSOR:
            raise RequestError(f"input 'extra': '{name}' is a tensor or object; JSON carries none")
        extra[name] = values.json_value(parameter, extra[name])
    return extra


def _merge(sent: Mapping[str, Any], loaded: LoadedPipeline) -> dict[str, Any]:
    """Put the request over the entry's call kwargs, under the names of `__call__`."""
    parameters = loaded.signature.parameters
    kwargs: dict[str, Any] = {}
    for name, value in loaded.call_kwargs.items():
        p = parameters[name]
        kwargs[p.argument] = _entry_value(p, value)
    seen: dict[str, str] = {}
    for name, value in sent.items():
        argument = parameters[name].argument
        if argument in seen:
            raise RequestError(f"inputs '{seen[argument]}' and '{name}' are the same; send one")
        seen[argument] = name
        kwargs[argument] = value
    return kwargs


def _entry_value(parameter: Parameter, value: Any) -> Any:
    if parameter.kind is Kind.JSON and value is not None:
        return values.json_value(parameter, value)
    if parameter.as_tuple and isinstance(value, list):
        return tuple(value)
    return values.chosen(parameter, value) if parameter.enum else value


def _check_required(kwargs: Mapping[str, Any], signature: Signature) -> None:
    for p in signature.parameters.values():
        if p.required and p.argument not in kwargs:
            kinds = f" (or '{p.name}_bytes')" if p.kind in MEDIA else ""
            raise RequestError(
                f"input '{p.name}'{kinds} is missing; {signature.pipeline_class} requires it"
            )
