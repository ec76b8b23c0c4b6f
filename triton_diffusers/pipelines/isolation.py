# SPDX-License-Identifier: Apache-2.0
"""One call's own view of a pipeline: its own schedulers and a progress bar that is ours.

Nearly every pipeline drives `self.progress_bar`, many more than take a callback; it knows the
total, ticks once a step, and may raise to stop the call. `why_not_beside` tells whether
calls of a pipeline may run side by side, as step batching has them.
"""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tqdm import tqdm

from triton_diffusers.pipelines.denoisers import denoisers

OnStep = Callable[..., None]
"""(steps done, steps in all; 0 when unknown). May raise to stop the call.

Of a call that wants previews, a third argument: a function that returns them as they are now."""
CHANGES_DENOISER = ("set_attn_processor", "attn_processors", "enable_fuser")
"""Words of pipelines whose calls change modules that all calls share."""
PIPELINES = "diffusers.pipelines.pipeline_utils"
"""Where DiffusionPipeline itself is, which every call has."""


class StepBar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A silent progress bar that reports every step."""

    def __init__(self, on_step: OnStep, iterable: Any = None, total: int | None = None) -> None:
        super().__init__(iterable, total=total, disable=True)
        self._on_step = on_step
        self._done = 0

    def update(self, n: float | None = 1) -> None:
        """Count steps and report them."""
        self._done += int(n or 0)
        self._on_step(self._done, int(self.total or 0))

    def __iter__(self) -> Iterator[Any]:
        for element in self.iterable:
            yield element
            self.update()


DEVICE = "_execution_device"
"""Where a pipeline puts its inputs; a property of diffusers' pipelines."""

Processors = tuple[tuple[Any, Mapping[str, Any]], ...]
"""Components that have attention processors, and those that they had when they were loaded."""


def read_processors(pipeline: Any) -> Processors:
    """Return the attention processors of a loaded pipeline's components."""
    return tuple(
        (component, dict(component.attn_processors))
        for component in pipeline.components.values()
        if hasattr(component, "attn_processors") and hasattr(component, "set_attn_processor")
    )


@contextlib.contextmanager
def restored_on_failure(before: Processors) -> Iterator[None]:
    """Put back the attention processors that a call set and, because it failed, left behind.

    Perturbed-attention pipelines and some others change the shared denoiser while they run.
    """
    try:
        yield
    except BaseException:
        for component, processors in before:
            now = component.attn_processors
            if any(now.get(name) is not processor for name, processor in processors.items()):
                component.set_attn_processor(dict(processors))
        raise


def isolate(
    pipeline: Any,
    on_step: OnStep,
    on_start: Callable[[], None] = lambda: None,
    device: Any = None,
) -> Any:
    """Return a shallow copy of the pipeline for one call. on_start: called as its steps begin.

    device: the pipeline's `_execution_device` where it is known; else it is looked up once.

    Weights are shared. Schedulers and guiders are copied, because they hold the state of a call:
    what one request left in them cannot reach the next. Pipelines inside the pipeline (combined
    ones) are treated the same way.
    """
    from diffusers import DiffusionPipeline

    clone = copy.copy(pipeline)
    clone.__class__ = _of_one_call(type(pipeline))  # type: ignore[arg-type]  # it is hashable
    if device is not None:
        vars(clone)[DEVICE] = device
    for name, value in list(vars(pipeline).items()):
        if isinstance(value, _stateful()):
            vars(clone)[name] = copy.deepcopy(value)
        elif isinstance(value, DiffusionPipeline):
            vars(clone)[name] = isolate(value, on_step, on_start)

    def progress_bar(iterable: Any = None, total: int | None = None, **_: Any) -> StepBar:
        on_start()
        return StepBar(on_step, iterable, total)

    vars(clone)["progress_bar"] = progress_bar
    return clone


@functools.cache
def _stateful() -> tuple[type, ...]:
    """Return the classes of components that hold the state of a call."""
    from diffusers import SchedulerMixin

    try:
        from diffusers.guiders import BaseGuidance
    except ImportError:  # before diffusers 0.35.2 there are none
        return (SchedulerMixin,)
    return (SchedulerMixin, BaseGuidance)


@functools.cache
def _of_one_call(cls: Any) -> Any:
    """Return a pipeline class of the same name whose `_execution_device` is looked up once.

    diffusers searches every module of every component for hooks each time that it is asked, and a
    call asks several times: as long as some steps of a small model take.
    """

    def look_up(self: Any) -> Any:
        return getattr(cls, DEVICE).fget(self)

    device = functools.cached_property(look_up)
    device.__set_name__(cls, DEVICE)
    return type(cls.__name__, (cls,), {DEVICE: device, "__module__": cls.__module__})


def why_not_beside(pipeline: Any) -> str | None:
    """Return why calls of a pipeline must not run side by side, or None."""
    for part in (pipeline, *pipelines_inside(pipeline)):
        source = _own_source(type(part))
        if source is None:
            return "the source of its call cannot be read"
        if any(words in source for words in CHANGES_DENOISER):
            return "its call changes the attention layers of the denoiser that all calls share"
    if not any("." not in name for name in denoisers(pipeline)):
        return "it has no denoiser"
    return None


def _own_source(cls: type) -> str | None:
    """Return the source of what a pipeline class and those that it extends define themselves.

    Not that of diffusers' mixins, which offer what a call does not do; None where there is none.
    """
    from diffusers import DiffusionPipeline

    bases = [
        c for c in cls.__mro__ if issubclass(c, DiffusionPipeline) and c.__module__ != PIPELINES
    ]
    functions = [f for base in bases for f in vars(base).values() if inspect.isfunction(f)]
    try:
        return "".join(inspect.getsource(inspect.unwrap(function)) for function in functions)
    except (OSError, TypeError):
        return None


def pipelines_inside(pipeline: Any) -> list[Any]:
    """Return the pipelines that a combined pipeline holds, or those of a call's copy."""
    return [value for value in vars(pipeline).values() if hasattr(value, "progress_bar")]
