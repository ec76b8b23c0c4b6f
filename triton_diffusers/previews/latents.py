# SPDX-License-Identifier: Apache-2.0
"""What a running call's schedulers make of its latents, watched without changing any of it."""

import dataclasses
import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any

CLEAN = ("pred_original_sample", "denoised")
"""How scheduler outputs call their estimate of the finished latents."""


@dataclass(frozen=True)
class SchedulerStep:
    """One step of one scheduler: what it was given and what it returned."""

    cls: type
    """The scheduler's own class, not the one that watches it."""
    number: int
    """Which of the call's schedulers it is, by first use: sound has latents of its own."""
    scheduler: Any
    model_output: Any
    sample: Any
    sigma: Any
    """The scheduler's noise level before the step, where it has levels."""
    output: Any

    @property
    def latents(self) -> Any:
        """The latents after the step; None where the output has none."""
        if isinstance(self.output, tuple):
            return self.output[0]
        return getattr(self.output, "prev_sample", None)

    @property
    def clean(self) -> Any:
        """The finished latents as far as this step can tell, else the latents after it."""
        guess = self._clean()
        usable = guess is not None and getattr(guess, "shape", None) == self.latents.shape
        return guess if usable else self.latents

    def _clean(self) -> Any:
        index, name = _clean_field(self.cls)
        if name is not None:
            if isinstance(self.output, tuple):
                return self.output[index] if len(self.output) > index else None
            return getattr(self.output, name, None)
        config = getattr(self.scheduler, "config", {})
        algorithm = str(config.get("algorithm_type", ""))
        if config.get("predict_x0") or algorithm.endswith("dpmsolver++"):
            found = getattr(self.scheduler, "model_outputs", None)
            return found[-1] if isinstance(found, list) and found else None
        if self.sigma is not None and self.cls.__name__.startswith("FlowMatch"):
            return self.sample - self.sigma * self.model_output
        return None


class Latents:
    """The last step of each scheduler of one call."""

    def __init__(self) -> None:
        self._steps: dict[int, SchedulerStep] = {}
        self._numbers: dict[int, int] = {}

    def watch(self, pipeline: Any) -> None:
        """Note every step of a call's own pipeline, whose schedulers are copies: they change class.

        A class of the same name in place of an attribute: pipelines copy their scheduler, or its
        `__dict__`, and each copy's `step` must work on that copy.
        """
        from diffusers import DiffusionPipeline, SchedulerMixin

        for value in list(vars(pipeline).values()):
            if isinstance(value, SchedulerMixin) and hasattr(value, "step"):
                value.__class__ = self._watched(type(value))
            elif isinstance(value, DiffusionPipeline):
                self.watch(value)

    def steps(self) -> list[SchedulerStep]:
        """Return the last step of each scheduler that holds latents, the latest first."""
        found = [s for s in self._steps.values() if _is_floating(s.latents)]
        return found[::-1]

    def clear(self) -> None:
        """Let the tensors go."""
        self._steps.clear()
        self._numbers.clear()

    def _watched(self, cls: type) -> type:
        plain: Any = cls
        steps, numbers = self._steps, self._numbers

        @functools.wraps(plain.step)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            given = dict(zip(_names(cls), args, strict=False)) | kwargs
            output = plain.step(scheduler, *args, **kwargs)
            steps.pop(id(scheduler), None)
            steps[id(scheduler)] = SchedulerStep(
                cls,
                numbers.setdefault(id(scheduler), len(numbers)),
                scheduler,
                given.get("model_output"),
                given.get("sample"),
                _sigma_before(scheduler),
                output,
            )
            return output

        names = {"step": step, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls.__name__, (cls,), names)


@functools.cache
def _names(cls: Any) -> list[str]:
    """Return the names of the arguments of a scheduler's step, without self."""
    return list(inspect.signature(cls.step).parameters)[1:]


@functools.cache
def _clean_field(cls: Any) -> tuple[int, str | None]:
    """Return where a scheduler's output holds the finished latents: its place in it, and its name.

    Read from the annotation of `step`: a tuple comes in the order of the output class.
    """
    annotation = inspect.signature(cls.step).return_annotation
    for found in typing.get_args(annotation) or (annotation,):
        if dataclasses.is_dataclass(found):
            for index, field in enumerate(dataclasses.fields(found)):
                if field.name in CLEAN:
                    return index, field.name
    return 0, None


def _sigma_before(scheduler: Any) -> Any:
    """Return the noise level at which a step that is done began."""
    index, sigmas = getattr(scheduler, "step_index", None), getattr(scheduler, "sigmas", None)
    if index is None or sigmas is None or not 0 < int(index) <= len(sigmas):
        return None
    return sigmas[int(index) - 1]


def _is_floating(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point()
