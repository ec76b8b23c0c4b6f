# SPDX-License-Identifier: Apache-2.0
"""An entry's `diffusers_call_kwargs` against the pipeline's signature, at load and by `check`."""

import json
from typing import Any

from triton_diffusers.calls.limits import check_ranges, check_work, read_work
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import MEDIA, Kind, is_reserved, reserved_hint
from triton_diffusers.errors import ConfigError, RequestError, unknown
from triton_diffusers.pipelines.signature import Parameter, Signature

OPTION = "diffusers_call_kwargs"
FITTING: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.STRING: (str,),
    Kind.INT: (int,),
    Kind.INTS: (int,),
    Kind.FLOAT: (int, float),
    Kind.FLOATS: (int, float),
    Kind.BOOL: (bool,),
    Kind.BOOLS: (bool,),
}
"""What an element of a value may be. Kinds that are not here take any JSON."""


def refuse_reserved(config: ServeConfig) -> None:
    """Raise ConfigError for a call kwarg that is ours to set. Needs no pipeline class."""
    for name in config.diffusers_call_kwargs or {}:
        if is_reserved(name):
            raise ConfigError(f"{OPTION}: '{name}' is reserved: {reserved_hint(name)}")


def check_call_kwargs(
    config: ServeConfig, signature: Signature
) -> tuple[dict[str, Any], list[str]]:
    """Return the entry's call kwargs that the pipeline takes, and a warning for each other one.

    Raises ConfigError for those that are ours to set, that no JSON value fits, and for values of a
    wrong type or out of range.
    """
    refuse_reserved(config)
    taken: dict[str, Any] = {}
    notes = []
    for name, value in (config.diffusers_call_kwargs or {}).items():
        parameter = signature.parameters.get(name)
        if parameter is None:
            text = unknown("argument", name, signature.pipeline_class, signature.parameters)
            notes.append(f"{OPTION}: {text.split(' Accepted:')[0]} Skipped.")
        else:
            _check_type(parameter, value)
            taken[name] = value
    try:
        check_ranges(taken, config, thing=f"{OPTION}: argument")
    except RequestError as error:
        raise ConfigError(str(error)) from None
    _check_work(taken, config, signature)
    return taken, notes


def _check_work(taken: dict[str, Any], config: ServeConfig, signature: Signature) -> None:
    """Raise ConfigError where a request for one output, as it comes, would already be too much."""
    kwargs = {signature.parameters[name].argument: value for name, value in taken.items()}
    try:
        check_work(read_work(kwargs, signature, outputs=1), config)
    except RequestError as error:
        raise ConfigError(
            f"parameter 'max_work': a request for one output is more already: {error}"
        ) from None


def _check_type(parameter: Parameter, value: Any) -> None:
    kind, name = parameter.kind, parameter.name
    if kind is Kind.TENSOR or kind in MEDIA:
        what = "a tensor" if kind is Kind.TENSOR else f"an input file ({kind.value})"
        raise ConfigError(f"{OPTION}: '{name}' is {what}; JSON carries none; remove it")
    if parameter.nested_type and kind is Kind.JSON and value is not None:
        if not isinstance(value, parameter.nested_type):
            wanted = "object" if parameter.nested_type is dict else "list"
            raise ConfigError(
                f"{OPTION}: '{name}' must be a JSON {wanted}, not {json.dumps(value)[:80]}"
            )
        return
    accepted = FITTING.get(kind)
    if accepted is None or value is None:
        return
    for element in value if isinstance(value, list) else [value]:
        is_bool = isinstance(element, bool)
        if not isinstance(element, accepted) or (is_bool and bool not in accepted):
            raise ConfigError(
                f"{OPTION}: '{name}' must be {kind.value}, not {json.dumps(value)[:80]}"
            )
