# SPDX-License-Identifier: Apache-2.0
"""Triton requests <-> jobs: the only module that names `triton_python_backend_utils`.

Triton imports an entry's `1/model.py`, which takes `TritonPythonModel` from here. Torch is
imported in `initialize`, not before: Triton may import model.py once more to complete a config.
"""

import contextlib
import gc
import io
import json
import locale
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_diffusers.calls.arguments import (
    Call,
    names_of_media,
    read_call,
    read_priority,
    refuse_parameters,
)
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import INFO, PREVIEW, PROBE, PROGRESS, is_decoupled
from triton_diffusers.engine.deadline import Deadline
from triton_diffusers.engine.engine import Engine
from triton_diffusers.engine.jobs import Beat, Running
from triton_diffusers.engine.loops import one_run_at_a_time, side_by_side
from triton_diffusers.errors import (
    BusyError,
    CancelledError,
    ConfigError,
    OutOfMemoryError,
    RequestError,
    one_line,
)
from triton_diffusers.loading.entry import load_entry
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.isolation import OnStep
from triton_diffusers.placement.devices import forget_peak
from triton_diffusers.previews.previews import preview_files
from triton_diffusers.running.info import describe_load, describe_model
from triton_diffusers.running.record import (
    BATCH,
    LONGEST_ID,
    OK,
    WHOLE,
    Record,
    bytes_of,
    outcome_of,
    whole_numbers,
)
from triton_diffusers.running.request_batching import RequestBatcher
from triton_diffusers.running.run import Computed, compute, encode
from triton_diffusers.running.step_batching import Lane, StepBatcher
from triton_diffusers.serving.metrics import Metrics, State
from triton_diffusers.serving.shared_memory import Room


class Status(NamedTuple):
    """What an error means: its name in Triton, whose codes exist once a model runs, and gRPC's."""

    triton_name: str
    grpc_name: str


INTERNAL = Status("INTERNAL", "INTERNAL")
STATUSES: dict[type[BaseException], Status] = {
    RequestError: Status("INVALID_ARG", "INVALID_ARGUMENT"),
    BusyError: Status("UNAVAILABLE", "UNAVAILABLE"),
    CancelledError: Status("CANCELLED", "CANCELLED"),
    OutOfMemoryError: INTERNAL,
}


class TritonPythonModel:
    """One instance of an entry."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Return the config as it is: entries are complete."""
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the pipeline. A ConfigError becomes the model's load error, in one line."""
        _use_utf8()
        model_config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.decoupled = is_decoupled(model_config)
        try:
            self.loaded = load_entry(args, self.log)
        except ConfigError as error:
            self.log_error(str(error))
            raise pb_utils.TritonModelException(f"{self.name}: {error}") from None
        for warning in self.loaded.warnings:
            pb_utils.Logger.log_warn(f"{self.name}: {warning}")
        self.log(describe_load(self.loaded))
        self.outputs = frozenset(output["name"] for output in model_config["output"])
        self.media = names_of_media(self.loaded.signature)
        self._room = Room()
        self._sending = threading.Lock()
        self._lanes: StepBatcher | None = None
        self._batcher: RequestBatcher | None = None
        self._told = describe_model(self.loaded)
        self._engine = self._start_engine(self.loaded.config)
        self.metrics = self._start_metrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the engine, which answers through their response senders."""
        for request in requests:
            job = _Job(request, self)
            try:
                if job.is_probe():
                    job.answer_probe(self._engine.health() | self._told)
                else:
                    job.record.queue_length = self._engine.waiting
                    job.record.priority = job.priority = read_priority(job.parameters)
                    self._engine.submit(job)
            except Exception as error:
                job.fail(error)

    def is_ready(self) -> bool:
        """Tell whether requests would be run; newer servers ask."""
        return bool(self._engine.health()["status"] == "ready")

    def finalize(self) -> None:
        """Finish what was accepted and let the pipeline go."""
        self._engine.close()
        self.metrics.close()
        del self.loaded
        # what is left of Triton's objects would outlive its memory and crash the stub's end
        gc.collect()

    def log(self, text: str) -> None:
        """Write a line about this model to the server's log."""
        pb_utils.Logger.log_info(f"{self.name}: {text}")

    def log_error(self, text: str) -> None:
        """Write an error about this model to the server's log."""
        pb_utils.Logger.log_error(f"{self.name}: {text}")

    def send(self, wire: Mapping[str, Array], job: "_Job") -> None:
        """Send output tensors as a job's final response, where they fit the shared memory."""
        with self._sending:
            self._room.check(wire)
            job.finish([pb_utils.Tensor(name, array) for name, array in wire.items()])

    def _start_engine(self, config: ServeConfig) -> Engine:
        work, max_batch, max_in_flight = one_run_at_a_time(self._run_one), 1, 1
        if config.step_batching:
            self._lanes = StepBatcher(config.max_batch, self.log)
            max_in_flight = config.max_in_flight
            work = side_by_side(self._lanes, max_in_flight, self._start_lane)
        elif config.request_batching:
            self._batcher = RequestBatcher(self.loaded, config.max_batch, self.log)
            work, max_batch = one_run_at_a_time(self._run_together), config.max_batch
        return Engine(
            work,
            config.max_queue,
            max_batch,
            max_in_flight,
            config.stuck_after_s,
            self.log_error,
        )

    def _start_metrics(self, args: Mapping[str, str]) -> Metrics:
        def state() -> State:
            health = self._engine.health()
            forwards = self._lanes.forwards if self._lanes else {}
            return State(health["waiting"], health["running"], dict(forwards))

        labels = {
            "model": self.name,
            "version": args["model_version"],
            "model_instance": args["model_instance_name"],
        }
        written = self.loaded.config.log_requests
        return Metrics(pb_utils.MetricFamily, labels, state, self.log, written)

    def joins(self, first: Call, second: Call) -> bool:
        """Tell whether two calls may run as one."""
        return self._batcher is not None and self._batcher.joins(first, second)

    def _run_one(self, jobs: Sequence["_Job"], beat: Beat) -> list[Any]:
        (job,) = jobs
        forget_peak(self.loaded.device)
        return [compute(job.call, self.loaded, job.on_step(beat))]

    def _run_together(self, jobs: Sequence["_Job"], beat: Beat) -> list[Any]:
        assert self._batcher is not None
        forget_peak(self.loaded.device)
        started = time.monotonic()
        calls, on_steps = [job.call for job in jobs], [job.on_step(beat) for job in jobs]
        results = self._batcher.run(calls, on_steps, beat)
        elapsed = time.monotonic() - started
        for result in results:
            if isinstance(result, Computed):
                rest = elapsed - result.seconds[WHOLE]
                result.seconds = result.seconds | {BATCH: max(0.0, rest)}
        self.loaded.facts["request_batching"] = self._batcher.facts()
        return results

    def _start_lane(self, engine: Engine, running: Running) -> None:
        assert self._lanes is not None
        (job,) = running.jobs
        assert isinstance(job, _Job)

        def work(lane: Lane) -> Computed:
            return compute(job.call, self.loaded, job.on_step(running.beat), lane)

        self.loaded.facts["step_batching"] = self._lanes.facts()
        self._lanes.start(work, lambda result: engine.give(running, [result]))


def _use_utf8() -> None:
    """Let texts be UTF-8, in the log and in files: Triton's embedded Python knows only ASCII.

    Packages open files without naming an encoding; torch's compiler could not read its own.
    """
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


class _Job:
    """One Triton request and its one final response."""

    def __init__(self, request: Any, model: TritonPythonModel) -> None:
        self._request = request
        self._sender = request.get_response_sender()
        self._model = model
        self._answering = threading.Lock()
        self._answered = False
        self._is_left = False
        self._ran_at = 0.0
        timeout_us = request.timeout()
        self._deadline = Deadline(timeout_us / 1e6 if timeout_us else None)
        self._came_at = self._read_at = time.monotonic()
        self.record = Record(request.request_id()[:LONGEST_ID])
        self._inputs = {tensor.name(): tensor for tensor in request.inputs()}
        self.call: Call
        self.parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
        self.priority = 0
        self.reads_files = not model.media.isdisjoint(self._inputs)

    def check(self) -> None:
        """Raise CancelledError when the caller went away, or was answered, or the time is over."""
        self._deadline.check()
        if self._is_left or self._answered:
            raise CancelledError("the request was cancelled")

    def ask(self) -> None:
        """Ask Triton whether the caller is still there: it takes 0.2 ms, so no step does it."""
        with self._answering:
            self._is_left = self._is_left or (not self._answered and self._sender.is_cancelled())

    def read(self) -> None:
        """Decode the inputs. Raises RequestError."""
        seconds, started = self.record.seconds, time.monotonic()
        self._read_at = started
        seconds["queue"] = started - self._came_at
        refuse_parameters(self.parameters, self._model.loaded.signature)
        inputs = {name: tensor.as_numpy() for name, tensor in self._inputs.items()}
        self.record.input_bytes = bytes_of(inputs.values())
        self.call = read_call(inputs, self._model.loaded)
        self.record.arguments = whole_numbers(self.call.kwargs)
        self.record.seeds = self.call.seeds
        self._read_at = time.monotonic()
        seconds["decode_inputs"] = self._read_at - started

    def joins(self, other: "_Job") -> bool:
        """Tell whether both may run as one call."""
        return self._model.joins(self.call, other.call)

    def on_step(self, beat: Beat) -> OnStep:
        """Return what a run of this job calls at each step; it starts now.

        Stops a run that nobody waits for, and reports the step where the entry streams.
        """
        self._ran_at = time.monotonic()
        self.record.seconds["queue"] += self._ran_at - self._read_at

        def on_step(done: int, total: int, pictures: Callable[[], Any] | None = None) -> None:
            beat()
            self.record.steps += 1
            try:
                self.check()
            except CancelledError as error:
                self.fail(error)  # now: others may go on in the same run
                raise
            if self._model.decoupled:
                self._send_progress(done, total, pictures if self._is_due() else None)

        return on_step

    def _is_due(self) -> bool:
        """Tell whether a preview is due after the steps that are done."""
        every = self.call.output.preview_every
        return every is not None and self.record.steps % every == 0

    def _send_progress(
        self, done: int, total: int, pictures: Callable[[], Any] | None = None
    ) -> None:
        tensors = [pb_utils.Tensor(PROGRESS.name, np.array([done, total], np.int64))]
        painted = None if pictures is None else pictures()
        if painted is not None:
            files = preview_files(painted, self.call.output.as_base64)
            tensors.append(pb_utils.Tensor(PREVIEW.name, files))
        self._sender.send(pb_utils.InferenceResponse(tensors))

    def answer(self, result: Computed) -> None:
        """Encode the result and send it as the final response."""
        model = self._model
        wire = encode(result, self.call, model.loaded, self.record)
        requested = frozenset(self._request.requested_output_names())
        wanted = requested & model.outputs if requested else model.outputs
        answer = {name: array for name, array in wire.items() if name in wanted}
        if not answer:
            asked, there = (", ".join(sorted(names)) for names in (requested, wire))
            raise RequestError(
                f"none of the outputs asked for ({asked}) comes with this output_format; there are "
                f"{there}"
            )
        self.record.output_bytes = bytes_of(answer.values())
        model.send(answer, self)

    def is_probe(self) -> bool:
        """Tell whether the request only asks how the model is."""
        return self.parameters.get(PROBE) is True

    def answer_probe(self, health: Mapping[str, Any]) -> None:
        """Answer with how the model is: as `info` where it is ready, else with an error."""
        if health["status"] != "ready":
            raise BusyError(f"the model is {health['status']}: {json.dumps(health)}")
        text = np.array([json.dumps(health).encode()], np.object_)
        self.finish([pb_utils.Tensor(INFO.name, text)])

    def fail(self, error: BaseException) -> None:
        """Send an error as the final response."""
        self._note_seconds()
        status, text = _wording(error)
        if status is None:
            self._model.log_error("".join(traceback.format_exception(error)))
            status = INTERNAL
        if self._model.decoupled:
            # Triton streams an error's text only: the status goes in, as tritonclient writes it
            text = f"[StatusCode.{status.grpc_name}] {text}"
        # half of a surrogate pair, which JSON can name, is no text to Triton
        text = text.encode(errors="backslashreplace").decode()
        code = getattr(pb_utils.TritonError, status.triton_name)
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
        self._send_final(response, outcome_of(error))

    def _note_seconds(self) -> None:
        """Note where the time went of a request that ended early."""
        now, seconds = time.monotonic(), self.record.seconds
        if self._ran_at:
            seconds.setdefault(WHOLE, now - self._ran_at)
        else:
            seconds["queue"] = seconds.get("queue", 0.0) + now - self._read_at

    def finish(self, tensors: list[Any]) -> None:
        """Send tensors as the final response."""
        self._send_final(pb_utils.InferenceResponse(tensors), OK)

    def _send_final(self, response: Any, outcome: str) -> None:
        started = time.monotonic()
        with self._answering:
            if self._answered:
                return
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            # not before: an answer that could not be sent leaves room for an error
            self._answered = True
        if not self.is_probe():
            ended = time.monotonic()
            seconds = {"send": ended - started, "total": ended - self._came_at}
            record = self.record
            record = replace(record, outcome=outcome, seconds=record.seconds | seconds)
            self._model.metrics.add(record)


def _wording(error: BaseException) -> tuple[Status | None, str]:
    """Return an error's status (None: ours to log) and its text."""
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    return status, " ".join(str(error).split()) if status is not None else one_line(error)
