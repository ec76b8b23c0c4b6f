# SPDX-License-Identifier: Apache-2.0
"""Many pipelines, each served and held against plain diffusers."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tests.parity.compare import differences
from tests.parity.fresh import ChildError
from tests.parity.plain import PlainCall, class_of, run_plain
from tests.parity.served import PROTOCOLS, DiffusersClientError, Repository, ServerError

STATE_SEED = 1_000_003
"""Added to the seed for the request between the two that must agree."""


@dataclass
class Outcome:
    """What came of one pipeline.

    plain_error: what plain diffusers raised, "" if it did not. problems: everything in which the
    served entry does not do what plain diffusers does.
    """

    name: str
    call: PlainCall
    pipeline_class: str = "?"
    outputs: dict[str, list[int]] = field(default_factory=dict)
    plain_error: str = ""
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    log: str = ""

    @property
    def is_identical(self) -> bool:
        """Whether there is an output and every element of it is the same."""
        return bool(self.outputs) and not self.problems

    @property
    def fails_alike(self) -> bool:
        """Whether plain diffusers fails, and the served entry with the same words."""
        return bool(self.plain_error) and not self.problems

    @property
    def verdict(self) -> str:
        """One line: identical, how it fails in both, or what differs."""
        if self.problems:
            return "; ".join(self.problems)
        return f"fails in diffusers too: {self.plain_error}" if self.plain_error else "identical"


class Runner:
    """Runs pipelines `workers` at a time, each worker on a server of its own."""

    def __init__(self, folder: Path, workers: int = 2):
        self._pool = ThreadPoolExecutor(workers, "parity")
        self._repositories = [Repository(folder / f"server-{n}") for n in range(workers)]
        self._free: queue.SimpleQueue[Repository] = queue.SimpleQueue()
        for repository in self._repositories:
            self._free.put(repository)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for repository in self._repositories:
            repository.stop()

    def submit(self, name: str, make_call: Callable[[], PlainCall]) -> Future[Outcome]:
        """Queue one pipeline; `make_call` runs in the worker, where it may take its time."""
        return self._pool.submit(self._run, name, make_call)

    def _run(self, name: str, make_call: Callable[[], PlainCall]) -> Outcome:
        repository = self._free.get()
        try:
            return check(name, make_call(), repository)
        finally:
            self._free.put(repository)


def check(name: str, call: PlainCall, repository: Repository, loaded: bool = False) -> Outcome:
    """Serve one pipeline and compare: a request, one with another seed, the first one again.

    loaded: the entry is there, with the options of `entry_options`, and stays.
    """
    outcome = Outcome(name, call, call.pipeline_class or class_of(call.folder))
    started = time.monotonic()
    expected = ask_plain(outcome)
    try:
        if not loaded:
            repository.add(name, call.folder, entry_options(call))
        outcome.seconds["load"] = time.monotonic() - started - sum(outcome.seconds.values())
        _check_answers(outcome, expected, repository)
    except (ServerError, ChildError) as error:
        outcome.problems.append(str(error))
    finally:
        outcome.log = repository.log_tail()
        if not loaded:
            _unload(outcome, repository)
    outcome.seconds["all"] = time.monotonic() - started
    return outcome


def entry_options(call: PlainCall) -> Sequence[str]:
    """Return the options of `builder add-model` that load what plain diffusers loads."""
    options = ["--device", "cpu", "--cpu-threads", str(call.threads)]
    if call.pipeline_class is not None:
        options += ["--pipeline-class", call.pipeline_class]
    if call.load_kwargs:
        options += ["--diffusers-load-kwargs", json.dumps(call.load_kwargs)]
    return options


def ask_plain(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return what plain diffusers returns; note its error if it raises one."""
    try:
        result = run_plain(outcome.call)
    except ChildError as error:
        outcome.plain_error = str(error)
        return {}
    outcome.outputs = {name: list(array.shape) for name, array in result.arrays.items()}
    outcome.seconds["plain"] = result.seconds
    return result.arrays


def _check_answers(
    outcome: Outcome, expected: dict[str, np.ndarray], repository: Repository
) -> None:
    call = outcome.call
    (seed,) = call.seeds
    for index, protocol in enumerate(PROTOCOLS):
        if index:
            _disturb(outcome, repository)
        started = time.monotonic()
        try:
            result = repository.call(outcome.name, protocol, seed=seed, **call.inputs)
        except DiffusersClientError as error:
            _note_error(outcome, protocol, error)
            continue
        outcome.seconds[protocol] = time.monotonic() - started
        if outcome.plain_error:
            outcome.problems.append(f"{protocol}: served, but plain: {outcome.plain_error}")
            continue
        found = differences(expected, result.arrays)
        outcome.problems += [f"{protocol}: {line}" for line in found]
        if result.seeds != [seed]:
            outcome.problems.append(f"{protocol}: seed {result.seeds} instead of {[seed]}")


def _disturb(outcome: Outcome, repository: Repository) -> None:
    """Send another request in between, which may fail: no trace of it may be left either."""
    seed, inputs = outcome.call.seeds[0] + STATE_SEED, disturbing(outcome.call)
    try:
        repository.call(outcome.name, "grpc", seed=seed, **inputs)
    except DiffusersClientError:
        return


def disturbing(call: PlainCall) -> dict[str, Any]:
    """Return the inputs of a request that differs from a call."""
    inputs = dict(call.inputs)
    steps = inputs.get("num_inference_steps")
    return inputs | ({"num_inference_steps": steps + 1} if isinstance(steps, int) else {})


def _note_error(outcome: Outcome, protocol: str, error: DiffusersClientError) -> None:
    """Note an error, unless plain diffusers raised the same."""
    text = outcome.plain_error.partition(": ")[2]
    if not text or text not in str(error):
        outcome.problems.append(f"{protocol}: {type(error).__name__}: {error}")


def _unload(outcome: Outcome, repository: Repository) -> None:
    try:
        repository.remove(outcome.name)
    except ServerError as error:
        outcome.problems.append(f"unload: {error}")


def describe_inputs(inputs: dict[str, Any]) -> str:
    """Word the arguments of a call, media by kind and size."""
    return ", ".join(f"{name}={_describe(value)}" for name, value in inputs.items())


def _describe(value: Any) -> str:
    if hasattr(value, "size") and hasattr(value, "mode"):
        return f"<{value.mode} {value.size[0]}x{value.size[1]}>"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, list) and value and hasattr(value[0], "mode"):
        sizes = dict.fromkeys(map(_describe, value))
        return f"{len(value)} of {', '.join(sizes)}" if len(sizes) == 1 else f"[{', '.join(sizes)}]"
    return repr(value)
