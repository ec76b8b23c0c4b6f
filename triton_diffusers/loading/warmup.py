# SPDX-License-Identifier: Apache-2.0
"""`warmup`: real calls before an entry answers ready, so that no caller pays for the first one."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from triton_diffusers.calls.defaults import OPTION as CALL_KWARGS
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.calls.sample import first_that_works, sample_kwargs
from triton_diffusers.config.options import ServeConfig, named
from triton_diffusers.errors import ConfigError, one_line
from triton_diffusers.pipelines.failures import is_of_a_scheduler, is_refusal
from triton_diffusers.pipelines.isolation import isolate, read_processors, restored_on_failure
from triton_diffusers.pipelines.notices import BLACK, NAN_CAUSES, collected
from triton_diffusers.pipelines.signature import Signature
from triton_diffusers.previews.previews import CallPreviews, Previews

SIZE = re.compile(r"(?P<width>\d+)x(?P<height>\d+)(x(?P<num_frames>\d+))?")
DEFAULT, NONE = "default", "none"
FORM = (
    f"'{DEFAULT}', sizes such as 512x512 or 832x480x81 (width x height x frames) separated by "
    f"commas, a JSON list of objects with arguments, or '{NONE}'"
)

Arguments = dict[str, Any]


def read_warmup(config: ServeConfig) -> list[Arguments] | None:
    """Return the arguments of each call to make; None where `warmup` is not set.

    Raises ConfigError for another form.
    """
    given = config.warmup
    if given is None:
        return None
    if isinstance(given, str):
        return [] if given == NONE else [_size(part.strip()) for part in given.split(",")]
    if not given or not all(isinstance(item, dict) for item in given):
        raise ConfigError(f"parameter 'warmup': give {FORM}")
    return [dict(item) for item in given]


def _size(text: str) -> Arguments:
    if text == DEFAULT:
        return {}
    found = SIZE.fullmatch(text)
    if found is None or any(int(n) == 0 for n in found.groupdict("1").values()):
        raise ConfigError(f"parameter 'warmup': '{text}' is no size; give {FORM}")
    return {name: int(value) for name, value in found.groupdict().items() if value is not None}


def check_warmup(config: ServeConfig, signature: Signature, call_kwargs: Arguments) -> None:
    """Raise ConfigError for arguments that the pipeline does not take."""
    for arguments in read_warmup(config) or ():
        try:
            sample_kwargs(signature, call_kwargs, arguments)
            check_call_kwargs(replace(config, diffusers_call_kwargs=arguments), signature)
        except ConfigError as error:
            text = str(error).removeprefix(f"{CALL_KWARGS}: ")
            raise ConfigError(f"parameter 'warmup': {text}") from None


def first_arguments(config: ServeConfig) -> Arguments:
    """Return what the first warm-up call says; a probe of the pipeline says it too."""
    return next(iter(read_warmup(config) or ()), {})


def warm_up(
    pipeline: Any,
    config: ServeConfig,
    signature: Signature,
    call_kwargs: Arguments,
    log: Callable[[str], None],
    previews: Previews | None = None,
) -> list[str]:
    """Call the pipeline once for each listed size; return warnings. previews: learn from the calls.

    Without `warmup`, an entry that is compiled makes one call with its defaults, else its first
    caller would wait for the compiler; one with options that are `tried` makes a small one. Raises
    ConfigError where a call fails.
    """
    call = functools.partial(_call, pipeline, config, signature, call_kwargs, previews)
    calls, missing = read_warmup(config), left_out(pipeline)
    if calls == [] or (calls is None and config.torch_compile == "off"):
        return _trial([] if calls == [] else tried_options(config), missing, call, log)
    for number, arguments in enumerate([{}] if calls is None else calls, 1):
        log(f"warm-up call {number}: {arguments or 'the defaults'}")
        try:
            call(arguments, small=False)
        except Exception as error:
            if missing:
                raise _cannot_do_without(missing, error) from None
            blamed = "scheduler" if config.scheduler and is_of_a_scheduler(error) else "warmup"
            hint = f" takes {FORM}" if blamed == "warmup" else ": choose another, or another config"
            raise ConfigError(
                f"the warm-up call with {arguments or 'the defaults'} fails: "
                f"{one_line(error)[:500]}; parameter '{blamed}'{hint}"
            ) from None
    return []


def tried_options(config: ServeConfig) -> list[str]:
    """Return the options of an entry of which only a call can tell whether they work."""
    tried = [name for name in named("tried") if getattr(config, name) not in (None, False)]
    tried += ["quantization_config"] if config.is_quantized else []
    return [*tried, "dtype"] if isinstance(config.dtype, dict) else tried


def left_out(pipeline: Any) -> list[str]:
    """Return the components that a pipeline lacks and its class does not call optional."""
    cls = type(pipeline)
    needed = set(cls._get_signature_keys(cls)[0]) - set(cls._optional_components)
    return [n for n, part in pipeline.components.items() if part is None and n in needed]


def _cannot_do_without(missing: list[str], error: Exception) -> ConfigError:
    names = ", ".join(f"'{name}'" for name in missing)
    return ConfigError(
        f"a call without the component {names} fails: {one_line(error)[:300]}; where "
        "diffusers_load_kwargs leaves it out, remove the null; where model_index.json does, use a "
        "model that has it"
    )


def _trial(
    options: list[str], missing: list[str], call: Callable[..., None], log: Callable[[str], None]
) -> list[str]:
    """Make one small call where options need it; return a warning where none could be made.

    missing: components that are left out, so that a call has to show that it does without.
    """
    tried = [*options, *(f"{name}: null" for name in missing)]
    if not tried:
        return []
    names = ", ".join(f"'{name}'" for name in tried)
    log(f"trying {names} with one small call")
    try:
        call({}, small=True)
    except Exception as error:
        if is_refusal(error, started=False) and not is_of_a_scheduler(error):
            return [
                f"parameters {names} were not tried: the pipeline takes no made-up call "
                f"({one_line(error)[:300]}); give 'warmup' a call that it takes"
            ]
        if missing:
            raise _cannot_do_without(missing, error) from None
        raise ConfigError(
            f"with {names} a small call fails: {one_line(error)[:500]}; change them, or, where the "
            f"made-up call itself does not suit the model, give 'warmup' one that does"
        ) from None
    return []


def _call(
    pipeline: Any,
    config: ServeConfig,
    signature: Signature,
    call_kwargs: Arguments,
    previews: Previews | None,
    given: Arguments,
    small: bool,
) -> None:
    """Make one real call with made-up inputs. Raises what the pipeline raises."""
    import torch

    fixed: Arguments = {}
    if signature.output_type is not None:
        fixed["output_type"] = signature.output_type
    if "generator" in signature.reserved:
        fixed["generator"] = torch.Generator(config.generator_device).manual_seed(0)

    notes: list[str] = []

    def run(kwargs: Arguments) -> None:
        notes.clear()  # what an earlier made-up call left
        watched = CallPreviews(previews, kwargs, wanted=False)
        clone = isolate(pipeline, lambda done, total: None)
        with watched.watching(clone):
            result = clone(**kwargs, **fixed)
        watched.finish(dict(result.items()) if hasattr(result, "items") else {})
        if any(_holds_nan(value) for value in _fields(result)):
            notes.append(BLACK)

    untouched = restored_on_failure(read_processors(pipeline))
    with torch.random.fork_rng(devices=[]), untouched, collected(notes):
        first_that_works(signature, call_kwargs, given, run, small)
    if BLACK in notes:
        raise ValueError(f"its output is NaN, {NAN_CAUSES}")


def _fields(result: Any) -> list[Any]:
    return list(result.values()) if hasattr(result, "values") else [result]


def _holds_nan(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_nan(part) for part in value)
    is_number = getattr(getattr(value, "dtype", None), "kind", "") == "f"
    is_tensor = hasattr(value, "is_floating_point") and value.is_floating_point()
    return bool((is_number or is_tensor) and (value != value).any())
