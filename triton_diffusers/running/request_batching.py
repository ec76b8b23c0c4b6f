# SPDX-License-Identifier: Apache-2.0
"""Request batching: requests that differ only in their texts and seeds, run as one pipeline call.

Nothing is known of the pipeline. Each prompt gets its own generator, as diffusers' `generator`
argument has it. Whether each caller then gets what it would have got alone is verified: the first
joined call of every kind is compared with the separate ones, whose results are what the callers
then get. Where they disagree, or where the joined call fails and the separate ones do not, calls of
that kind run one after the other.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from triton_diffusers.calls.arguments import Call
from triton_diffusers.calls.counts import PER_PROMPT
from triton_diffusers.errors import CancelledError, OutOfMemoryError, one_line
from triton_diffusers.pipelines.isolation import OnStep
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.record import whole_numbers
from triton_diffusers.running.run import Computed, compute

TOLERANCE = 0.01
"""Largest relative L2 difference between the results of a joined call and of separate ones."""
HALF_TOLERANCE = 0.1
"""The same for bfloat16 and float16, whose rounding steps amplify."""
MOST_KINDS = 500
MOST_TEXTS = 1000
MOST_REFUSED = 20

Outcome = Computed | BaseException


class RequestBatcher:
    """Joins calls of one pipeline. `limit`: most requests of one call."""

    def __init__(
        self, loaded: LoadedPipeline, limit: int, log: Callable[[str], None] = lambda text: None
    ) -> None:
        self._loaded = loaded
        self._limit = limit
        self._log = log
        self._limits: dict[Any, int] = {}
        """Sizes of calls for which the memory was not enough -> most requests of one call."""
        self._kinds: dict[Any, str | None] = {}
        """Kind of a joined call -> why it is not joined; None: verified."""
        self._counted: dict[str, tuple[int, ...]] = {}
        self.calls: Counter[int] = Counter()
        """Requests that ran as one call -> how many such calls there were."""
        self.largest_difference = 0.0

    def facts(self) -> dict[str, Any]:
        """Return what `info` tells: how many requests calls joined, and what is not joined."""
        return {
            "calls_by_requests": {str(n): count for n, count in sorted(self.calls.items())},
            "largest_difference": round(self.largest_difference, 9),
            "not_joined": sorted({why for why in self._kinds.values() if why})[:MOST_REFUSED],
        }

    def joins(self, first: Call, second: Call) -> bool:
        """Tell whether two calls agree in everything but texts and seeds."""
        return (
            self._limit > 1
            and "generator" in self._loaded.signature.reserved
            and first.outputs is not None
            and len(first.seeds) == first.outputs == second.outputs == len(second.seeds)
            and isinstance(first.kwargs.get("prompt"), str)
            and first.kwargs.keys() == second.kwargs.keys()
            and all(_agree(n, v, second.kwargs[n]) for n, v in first.kwargs.items())
            and self._kinds.get(self._kind([first, second])) is None
        )

    def run(
        self,
        calls: Sequence[Call],
        on_steps: Sequence[OnStep],
        beat: Callable[[], None] = lambda: None,
    ) -> list[Outcome]:
        """Run calls that join each other; return for each what it gave or raised.

        on_steps: for each call what to tell of its steps; one that raises CancelledError leaves.
        beat: called at each step that is no caller's own.
        """
        if len(calls) > self._limits.get(_sizes(calls[0]), self._limit):
            half = len(calls) // 2
            first = self.run(calls[:half], on_steps[:half], beat)
            return first + self.run(calls[half:], on_steps[half:], beat)
        kind = self._kind(calls)
        if len(calls) == 1 or self._kinds.get(kind) is not None:
            return self._run_alone(calls, on_steps)
        if kind not in self._kinds:
            return self._verify(kind, calls, on_steps, beat)
        gone: dict[int, BaseException] = {}
        try:
            joined = self._run_joined(calls, _told_to_all(calls, on_steps, gone))
        except CancelledError:
            return [gone[number] for number in range(len(calls))]
        except OutOfMemoryError as error:
            most = self._limits[_sizes(calls[0])] = max(1, len(calls) // 2)
            self._log(f"request_batching: {error}; from now on {most} such requests at once")
            return self.run(calls, on_steps, beat)
        except Exception as error:
            outcomes = self._run_alone(calls, on_steps)
            if all(isinstance(outcome, Computed) for outcome in outcomes):
                self._refuse(kind, _told(error, calls))
            return outcomes
        self.calls[len(calls)] += 1
        return [gone.get(number, computed) for number, computed in enumerate(joined)]

    def _run_alone(self, calls: Sequence[Call], on_steps: Sequence[OnStep]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for call, on_step in zip(calls, on_steps, strict=True):
            self.calls[1] += 1
            try:
                outcomes.append(compute(call, self._loaded, on_step))
            except BaseException as error:  # one that fails does not fail the others
                outcomes.append(error)
        return outcomes

    def _run_joined(self, calls: Sequence[Call], on_step: OnStep) -> list[Computed]:
        return _split(compute(_join(calls), self._loaded, on_step), calls)

    def _verify(
        self,
        kind: Any,
        calls: Sequence[Call],
        on_steps: Sequence[OnStep],
        beat: Callable[[], None],
    ) -> list[Outcome]:
        """Run a new kind both ways; callers get the separate results."""
        outcomes = self._run_alone(calls, on_steps)
        wanted = [outcome for outcome in outcomes if isinstance(outcome, Computed)]
        if len(wanted) < len(calls):
            return outcomes  # nothing to compare with; the next ones will show
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        try:
            found = self._run_joined(calls, lambda *_: beat())
            off = max(_difference(w, f) for w, f in zip(wanted, found, strict=True))
        except OutOfMemoryError:
            return outcomes
        except Exception as error:
            self._refuse(kind, _told(error, calls))
            return outcomes
        if off > (TOLERANCE if "float32" in str(self._loaded.dtype) else HALF_TOLERANCE):
            self._refuse(kind, f"the results differ by {off:.2g}")
        else:
            self._kinds[kind] = None
            self.largest_difference = max(self.largest_difference, off)
        return outcomes

    def _kind(self, calls: Sequence[Call]) -> Any:
        """Return what calls have in common that may decide whether joining them is right.

        Of numbers only whether they are above one: guidance scales switch guidance on there. Of
        texts and seeds whether they differ, and of texts whether they have equally many tokens:
        some pipelines pad shorter ones, which changes what they draw.
        """
        parts: list[Any] = [len({tuple(call.seeds) for call in calls}) == len(calls)]
        for name, value in calls[0].kwargs.items():
            if isinstance(value, bool):
                part: Any = value
            elif isinstance(value, int | float):
                part = value > 1
            elif isinstance(value, str) and PER_PROMPT.search(name):
                texts = {str(call.kwargs[name]) for call in calls}
                part = (len(texts) > 1, len({self._tokens(text) for text in texts}) > 1)
            else:
                part = value if isinstance(value, str) else type(value).__name__
            parts.append((name, part))
        return tuple(parts)

    def _tokens(self, text: str) -> tuple[int, ...]:
        """Return how many tokens each tokenizer of the pipeline makes of a text."""
        if text not in self._counted:
            if len(self._counted) >= MOST_TEXTS:
                self._counted.clear()
            components = self._loaded.pipeline.components
            tokenizers = [c for n, c in components.items() if n.startswith("tokenizer") and c]
            self._counted[text] = tuple(_count(tokenizer, text) for tokenizer in tokenizers)
        return self._counted[text]

    def _refuse(self, kind: Any, reason: str) -> None:
        self._kinds[kind] = reason
        self._log(f"request_batching: such requests run one after the other: {reason}")


def _told_to_all(
    calls: Sequence[Call], on_steps: Sequence[OnStep], gone: dict[int, BaseException]
) -> OnStep:
    """Tell every call of a joined one of its steps; stop when nobody wants it any more."""
    ends = np.cumsum([len(call.seeds) for call in calls])

    def on_step(done: int, total: int, pictures: Callable[[], Any] | None = None) -> None:
        for number, each in enumerate(on_steps):
            if number not in gone:
                try:
                    if pictures is None or not calls[number].output.preview_every:
                        each(done, total)
                    else:
                        start = ends[number] - len(calls[number].seeds)
                        each(done, total, functools.partial(_part, pictures, start, ends[number]))
                except CancelledError as error:
                    gone[number] = error
        if len(gone) == len(on_steps):
            raise CancelledError("nobody waits for this call")

    return on_step


def _part(pictures: Callable[[], Any], start: int, end: int) -> Any:
    """Return one call's part of a joined call's previews."""
    painted = pictures()
    return None if painted is None else painted[start:end]


def _agree(name: str, first: Any, second: Any) -> bool:
    """Tell whether an argument of two calls can be one: equal, or a text of each prompt."""
    if PER_PROMPT.search(name) and isinstance(first, str):
        return isinstance(second, str)
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        same_length = len(first) == len(second)
        return same_length and all(_same(a, b) for a, b in zip(first, second, strict=True))
    return _same(first, second)


def _same(first: Any, second: Any) -> bool:
    if hasattr(first, "shape") and hasattr(first, "dtype"):  # a sound, or frames of a video
        return bool(first.shape == second.shape and (first == second).all())
    return bool(first == second)


def _count(tokenizer: Any, text: str) -> int:
    try:
        return len(tokenizer(text)["input_ids"])
    except Exception:  # one of its own kind: words are counted
        return len(text.split())


def _sizes(call: Call) -> tuple[int, ...]:
    """Return the whole numbers of a call: sizes, frames, steps."""
    return tuple(whole_numbers(call.kwargs).values())


def _told(error: Exception, calls: Sequence[Call]) -> str:
    """Word why calls are not joined: everybody reads it in `info`, so without a caller's text."""
    text = one_line(error)
    said = {_letters(v) for call in calls for v in call.kwargs.values() if isinstance(v, str)}
    quotes = any(value and value in _letters(text) for value in said)
    return type(error.__cause__ or error).__name__ if quotes else text[:200]


def _letters(text: str) -> str:
    """Return letters and digits: what quoting leaves as it is."""
    return "".join(filter(str.isalnum, text))


def _join(calls: Sequence[Call]) -> Call:
    kwargs = dict(calls[0].kwargs)
    for name, value in kwargs.items():
        if PER_PROMPT.search(name) and isinstance(value, str):
            kwargs[name] = [call.kwargs[name] for call in calls]
    seeds = [seed for call in calls for seed in call.seeds]
    output = next((c.output for c in calls if c.output.preview_every), calls[0].output)
    return Call(kwargs, seeds, output, calls[0].counts, len(seeds))


def _split(computed: Computed, calls: Sequence[Call]) -> list[Computed]:
    """Return each call's part of what the joined call gave. Raises ValueError."""
    ends = np.cumsum([len(call.seeds) for call in calls])
    starts = [0, *ends[:-1]]
    for name, value in computed.fields.items():
        if value is not None and (not hasattr(value, "__len__") or len(value) != ends[-1]):
            raise ValueError(f"its output '{name}' has no element for each of {ends[-1]} outputs")
    return [
        replace(
            computed,
            fields={n: None if v is None else v[start:end] for n, v in computed.fields.items()},
            notes=list(computed.notes),
            batch=len(calls),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _difference(wanted: Computed, found: Computed) -> float:
    """Return the relative L2 difference of two results, the largest over their fields."""
    return max(
        (_distance(value, found.fields[name]) for name, value in wanted.fields.items()),
        default=0.0,
    )


def _distance(wanted: Any, found: Any) -> float:
    if wanted is None or found is None:
        return 0.0 if wanted is found else float("inf")
    a, b = (np.asarray(value, np.float64) for value in (wanted, found))
    if a.shape != b.shape:
        return float("inf")
    norm = float(np.linalg.norm(a)) or 1.0
    off = float(np.linalg.norm(a - b)) / norm
    return off if off == off else float("inf")
