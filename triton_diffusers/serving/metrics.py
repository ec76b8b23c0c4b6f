# SPDX-License-Identifier: Apache-2.0
"""Metrics of finished requests for Triton's /metrics, and a line of the log for each of them.

Both happen in a thread of their own: each value set and each line is a message to the server, and
no request waits for one. Counters and gauges are set twice a second, whatever
the requests. Nothing here fails a request.
"""

import contextlib
import ctypes
import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_diffusers.contract import COUNTS
from triton_diffusers.errors import one_line
from triton_diffusers.running.record import ALL_OUTCOMES, OK, STAGES, Record, exclusive

PREFIX = "triton_diffusers_"
PUBLISH_S = 0.5
"""How often values go to the server, at most; gauges are looked at as often."""
PAUSE_S = 0.05
"""How long lines of the log wait for others: waking for each would hold up the calls that run."""
SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class MetricSpec:
    """One metric. Its series differ in `label`; those for `values` are there from the start."""

    name: str
    kind: str
    about: str
    label: str = ""
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


FAMILIES = (
    MetricSpec(
        "requests_total",
        "counter",
        "Requests answered, by outcome.",
        label="outcome",
        values=ALL_OUTCOMES,
    ),
    MetricSpec("outputs_total", "counter", "Pictures, videos and sounds made."),
    MetricSpec(
        "steps_total", "counter", "Steps done, also for requests that were stopped or failed."
    ),
    MetricSpec(
        "late_results_total",
        "counter",
        "Results that were thrown away: the request was answered before, as its time was over.",
    ),
    MetricSpec("nan_requests_total", "counter", "Requests whose output held NaN (black pictures)."),
    MetricSpec(
        "forwards_total",
        "counter",
        "With step_batching: forwards of what calls share (mostly denoisers), by the calls joined.",
        label="calls",
    ),
    MetricSpec(
        "request_seconds",
        "histogram",
        "Seconds from acceptance to the answer, of requests with the outcome ok.",
        buckets=SECONDS,
    ),
    MetricSpec(
        "stage_seconds_total",
        "counter",
        "The same by stage; pipeline only where a call does not tell its stages.",
        label="stage",
        values=STAGES,
    ),
    MetricSpec(
        "batch_size",
        "histogram",
        "Requests that ran as one call, of each request with the outcome ok.",
        buckets=BATCHES,
    ),
    MetricSpec("steps_per_second", "gauge", "Steps per second of denoising, of the last requests."),
    MetricSpec("queue_length", "gauge", "Requests that are read or wait."),
    MetricSpec("running", "gauge", "Requests that run."),
    MetricSpec(
        "gpu_lock_waiting",
        "gauge",
        "Requests that wait for calls of other entries with the same gpu_lock.",
    ),
    MetricSpec(
        "peak_memory_bytes",
        "gauge",
        "Most memory since loading: torch's on the GPU, the process's on a CPU.",
    ),
    MetricSpec("reloads_total", "counter", "Times the model was loaded again as its process died."),
    MetricSpec("server_restarts_total", "counter", "Times tritonserver was started again."),
)
"""Every metric also has the labels of `Metrics`: model, version, model_instance."""
_BY_NAME = {family.name: family for family in FAMILIES}
_FAMILIES_OF_PROCESS: dict[str, Any] = {}

Value = tuple[str, str, float]
"""(family, value of its label or "", number)"""


@dataclass(frozen=True)
class EngineState:
    """How the engine is at this moment."""

    queue_length: int
    running: int
    gpu_lock_waiting: int = 0
    """How many of those that run wait for the lock of other entries."""
    forwards: Mapping[int, int] = field(default_factory=dict)
    """Calls that a forward joined -> how many such forwards there were since loading."""


class Metrics:
    """Takes records of finished requests; publishes and logs them in its thread."""

    def __init__(
        self,
        make: Any,
        labels: Mapping[str, str],
        state: Callable[[], EngineState],
        log: Callable[[str], None],
        log_requests: bool = True,
    ) -> None:
        """Create the metrics and start the thread.

        make: Triton's class MetricFamily. labels: of every metric. Where the server cannot have
        metrics, a line of the log says so and the rest goes on.
        """
        self._labels = labels
        self._state = state
        self._log = log
        self._log_requests = log_requests
        self._series: dict[tuple[str, str], Any] = {}
        self._published: dict[str, float] = {}
        self._forwards: Counter[int] = Counter()
        self._peak = 0
        self._late = 0
        self._told_late = 0
        self._records: deque[Record] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._works = self._create(make)
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Take the record of a request that is answered."""
        self._records.append(record)
        self._wake.set()

    def add_late(self) -> None:
        """Count a result that came after its request was answered."""
        with self._lock:
            self._late += 1
        self._log("a call ended after its request was answered; its result is thrown away")

    def close(self) -> None:
        """Publish what is left and end the thread."""
        self._closed.set()
        self._wake.set()
        self._thread.join()

    def _create(self, make: Any) -> bool:
        try:
            for family in FAMILIES:
                if family.name not in _FAMILIES_OF_PROCESS:
                    _FAMILIES_OF_PROCESS[family.name] = _made(make, family)
                for value in family.values if family.label else ("",):
                    self._one(family.name, value)
            for name, number in counts_of_builder(self._labels.get("model", "")):
                self._one(name, "").increment(max(0.0, number - self._one(name, "").value()))
        except Exception as error:
            self._log(f"there are no metrics of this model: {one_line(error)}")
            return False
        return True

    def _one(self, name: str, value: str) -> Any:
        """Return one series of a family, created where it is new."""
        if (name, value) not in self._series:
            family = _BY_NAME[name]
            labels = {**self._labels, **({family.label: value} if family.label else {})}
            extra = {"buckets": list(family.buckets)} if family.buckets else {}
            self._series[name, value] = _FAMILIES_OF_PROCESS[name].Metric(labels=labels, **extra)
        return self._series[name, value]

    def _work(self) -> None:
        new: list[Record] = []
        next_at = time.monotonic()
        closed = False
        while not closed:
            self._wake.wait(PUBLISH_S if not new else max(0.0, next_at - time.monotonic()))
            self._wake.clear()
            closed = self._closed.wait(PAUSE_S)  # read before the records: none comes after it
            while self._records:
                new.append(self._records.popleft())
                self._write(new[-1])
            if closed or time.monotonic() >= next_at:
                self._publish(new, EngineState(0, 0) if closed else self._state())
                new, next_at = [], time.monotonic() + PUBLISH_S

    def _write(self, record: Record) -> None:
        if self._log_requests:
            with contextlib.suppress(Exception):
                self._log(record.as_json())

    def _publish(self, records: Sequence[Record], state: EngineState) -> None:
        if not self._works:
            return
        try:
            for name, value, number in [*counts(records), *self._grown_since(state)]:
                self._one(name, value).increment(number)
            for name, value, number in observations(records):
                self._one(name, value).observe(number)
            for name, _, number in self._gauges(records, state):
                if records or self._published.get(name) != number:
                    self._one(name, "").set(number)
                    self._published[name] = number
        except Exception as error:
            self._works = False
            self._log(f"the metrics of this model end here: {one_line(error)}")

    def _grown_since(self, state: EngineState) -> Iterator[Value]:
        for calls, count in sorted(state.forwards.items()):
            if count > self._forwards[calls]:
                yield "forwards_total", str(calls), count - self._forwards[calls]
                self._forwards[calls] = count
        if self._late > self._told_late:
            yield "late_results_total", "", self._late - self._told_late
            self._told_late = self._late

    def _gauges(self, records: Sequence[Record], state: EngineState) -> Iterator[Value]:
        self._peak = max(self._peak, *(r.peak_memory_bytes for r in records), 0)
        yield "queue_length", "", state.queue_length
        yield "running", "", state.running
        yield "gpu_lock_waiting", "", state.gpu_lock_waiting
        yield "peak_memory_bytes", "", self._peak
        denoising = sum(r.seconds.get("denoise", 0.0) for r in records)
        if denoising:
            steps = sum(r.steps for r in records if "denoise" in r.seconds)
            yield "steps_per_second", "", steps / denoising


def counts_of_builder(model: str) -> list[tuple[str, float]]:
    """Return what `builder serve` counted, which no process of Triton could: it counts their ends.

    A model that is loaded again reads it anew; what it told before, the server still has.
    """
    try:
        told = json.loads(Path(os.environ[COUNTS]).read_text())
        reloads = float(told["reloads"].get(model, 0))
        return [("reloads_total", reloads), ("server_restarts_total", float(told["restarts"]))]
    except (KeyError, OSError, ValueError):
        return []


def counts(records: Sequence[Record]) -> Iterator[Value]:
    """Return by how much the counters grow."""
    outcomes = Counter(record.outcome for record in records)
    yield from (("requests_total", outcome, count) for outcome, count in outcomes.items())
    served = [record for record in records if record.outcome == OK]
    for name, count in (
        ("outputs_total", sum(r.outputs for r in served)),
        ("steps_total", sum(r.steps for r in records)),
        ("nan_requests_total", sum(r.nan for r in records)),
    ):
        if count:
            yield name, "", count
    by_stage: Counter[str] = Counter()
    for record in served:
        by_stage.update(exclusive(record.seconds))
    yield from (("stage_seconds_total", stage, seconds) for stage, seconds in by_stage.items())


def observations(records: Sequence[Record]) -> Iterator[Value]:
    """Return what the histograms observe: of requests that were served."""
    for record in records:
        if record.outcome != OK:
            continue
        yield "request_seconds", "", record.seconds["total"]
        yield "batch_size", "", record.batch


def _made(make: Any, family: MetricSpec) -> Any:
    """Create a family and keep it beyond the end of the interpreter.

    Where Python deletes one, the stub ends with a segmentation fault (issue 8662 of Triton's
    server), or the series of the same name of a model that was loaded again are deleted with it,
    and the server crashes at their next use (issue 8663).
    """
    kind = getattr(make, family.kind.upper())
    made = make(name=PREFIX + family.name, description=family.about, kind=kind)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made
