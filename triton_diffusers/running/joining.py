# SPDX-License-Identifier: Apache-2.0
"""Several calls of one model as one: their arguments joined along the batch, its output split.

Nothing is known of the model. What carries the batch is read from the shapes; whether it was read
rightly, the caller verifies by comparing (step_batching.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class NotJoinableError(Exception):
    """These calls cannot be one."""


@dataclass(frozen=True)
class ModelCall:
    """One call of a model: what it is called with, and how many samples that holds."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: int
    shape: Any
    """Equal for calls that may be joined: structure, dtypes, sizes but for the batch."""


def read_model_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelCall:
    """Describe a call. Its batch is the first axis of its first tensor, or a list's length."""
    batch = _batch_of([*args, *kwargs.values()])
    return ModelCall(args, kwargs, batch, _shape([args, kwargs], batch))


@dataclass(frozen=True)
class Joined:
    """One call that does the work of several."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spread: frozenset[int]
    """The places of values that the samples of a call share and that became one for each sample:
    calls whose values (timesteps) are equal keep one for all, which is another call to a model."""


def join(calls: Sequence[ModelCall], concatenate: bool) -> Joined:
    """Return one call that does the work of several.

    concatenate: whether a list as long as the batch holds one element per sample, or belongs to all
    samples. Raises NotJoinableError for what differs and carries no batch.
    """
    joining = _Joining([call.batch for call in calls], concatenate)
    args = joining.join([call.args for call in calls])
    kwargs = joining.join([call.kwargs for call in calls])
    return Joined(args, kwargs, frozenset(joining.spread))


def split(output: Any, sizes: Sequence[int]) -> list[Any]:
    """Return each call's part of what the joined call returned. Raises NotJoinableError."""
    import torch

    total = sum(sizes)
    if isinstance(output, torch.Tensor):
        if output.dim() == 0 or output.shape[0] != total:
            raise NotJoinableError(
                f"an output of shape {list(output.shape)} has no batch of {total}"
            )
        return list(torch.split(output, list(sizes)))
    if output is None:
        return [None] * len(sizes)
    if isinstance(output, dict):
        parts = {name: split(value, sizes) for name, value in output.items()}
        return [_like(output, {n: p[i] for n, p in parts.items()}) for i in range(len(sizes))]
    if isinstance(output, list | tuple):
        return _split_sequence(output, sizes, total)
    raise NotJoinableError(f"an output of type {type(output).__name__}")


def _split_sequence(output: Any, sizes: Sequence[int], total: int) -> list[Any]:
    import torch

    first = output[0] if len(output) else None
    is_per_sample = len(output) == total and not (
        isinstance(first, torch.Tensor) and first.dim() > 0 and first.shape[0] == total
    )
    if is_per_sample and isinstance(first, torch.Tensor):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [output[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    parts = [split(value, sizes) for value in output]
    return [type(output)(part[i] for part in parts) for i in range(len(sizes))]


def _like(output: dict[str, Any], fields: dict[str, Any]) -> Any:
    """Return fields as an output object of the same class; diffusers' are dictionaries."""
    return type(output)(**fields) if type(output) is not dict else fields


def _batch_of(values: Sequence[Any]) -> int:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
        if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
            return len(value)
    raise NotJoinableError("no argument is a tensor")


def _shape(value: Any, batch: int) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        sizes = tuple(value.shape)
        carries = bool(sizes) and sizes[0] == batch
        return ("tensor", value.dtype, value.device, carries, sizes[1:] if carries else sizes)
    if isinstance(value, dict):
        return ("dict", tuple((name, _shape(part, batch)) for name, part in value.items()))
    if isinstance(value, list | tuple):
        parts = tuple(_shape(part, batch) for part in value)
        if len(value) == batch and len(set(parts)) == 1:  # may hold one element per sample
            return (type(value).__name__, "batch", parts[0])
        return (type(value).__name__, parts)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return ("object", id(value))


@dataclass
class _Joining:
    """Joins values, one of each call, that stand at the same place of the arguments."""

    sizes: Sequence[int]
    concatenate: bool
    spread: set[int] = field(default_factory=set)
    tensors: int = 0
    """How many were joined: a place by which each is known."""

    def join(self, parts: Sequence[Any]) -> Any:
        import torch

        first = parts[0]
        if isinstance(first, torch.Tensor):
            return self._join_tensors(parts)
        if isinstance(first, dict):
            return {name: self.join([p[name] for p in parts]) for name in first}
        if isinstance(first, list | tuple):
            return self._join_sequences(parts)
        if any(part is not first and part != first for part in parts):
            raise NotJoinableError("a plain argument differs")
        return first

    def _join_sequences(self, parts: Sequence[Any]) -> Any:
        import torch

        kind = type(parts[0])
        per_sample = all(len(p) == n for p, n in zip(parts, self.sizes, strict=True)) and not any(
            isinstance(e, torch.Tensor) and e.dim() > 0 and e.shape[0] == n
            for p, n in zip(parts, self.sizes, strict=True)
            for e in p
        )
        if per_sample and self.concatenate:
            return kind(element for part in parts for element in part)
        if len({len(part) for part in parts}) > 1:
            raise NotJoinableError("lists of different lengths")
        return kind(self.join(list(column)) for column in zip(*parts, strict=True))

    def _join_tensors(self, parts: Sequence[Any]) -> Any:
        import torch

        self.tensors += 1
        first = parts[0]
        if all(p.dim() > 0 and p.shape[0] == n for p, n in zip(parts, self.sizes, strict=True)):
            return torch.cat(list(parts))
        if all(part is first or torch.equal(part, first) for part in parts):
            return first
        if all(part.numel() == 1 and part.dim() < 2 for part in parts):
            self.spread.add(self.tensors)
            return torch.cat([p.expand(n) for p, n in zip(parts, self.sizes, strict=True)])
        raise NotJoinableError("a tensor without batch differs")
