# SPDX-License-Identifier: Apache-2.0
"""One Triton request and its one final response."""

import json
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_diffusers.calls.arguments import Call, read_call, read_priority, refuse_parameters
from triton_diffusers.contract import INFO, PREVIEW, PROBE, PROGRESS
from triton_diffusers.engine.deadline import Deadline
from triton_diffusers.engine.jobs import Beat
from triton_diffusers.errors import (
    BusyError,
    CallError,
    CancelledError,
    RequestError,
    one_line,
)
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.isolation import OnStep
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.previews.previews import preview_files
from triton_diffusers.running.record import (
    GPU_LOCK,
    LONGEST_ID,
    OK,
    WHOLE,
    Record,
    bytes_of,
    outcome_of,
    whole_numbers,
)
from triton_diffusers.running.run import Computed, encode
from triton_diffusers.serving.metrics import Metrics


class ServedModel(Protocol):
    """What a job asks of the model that it came to."""

    loaded: LoadedPipeline
    decoupled: bool
    media: frozenset[str]
    """Inputs whose files take a while to read."""
    outputs: frozenset[str]
    metrics: Metrics

    def joins(self, first: Call, second: Call) -> bool:
        """Tell whether two calls may run as one."""

    def send(self, wire: Mapping[str, Array], job: "RequestJob") -> None:
        """Send output tensors as a job's final response, where they fit the shared memory."""

    def log_error(self, text: str) -> None:
        """Write an error about the model to the server's log."""


class RequestJob:
    """One Triton request and its one final response."""

    def __init__(self, request: Any, model: ServedModel) -> None:
        self._request = request
        self._sender = request.get_response_sender()
        self._model = model
        self._answering = threading.Lock()
        self._answered = False
        self._is_left = False
        self._ran_at = 0.0
        self._deadline = Deadline(None)
        self._came_at = self._read_at = time.monotonic()
        self.record = Record()
        self.parameters: dict[str, Any] = {}
        self.call: Call
        self.priority = 0
        self.amount = 1.0
        self._inputs: dict[str, Any] = {}
        self.reads_files = False

    def read_head(self) -> None:
        """Read the request's id, parameters and names of inputs. Raises RequestError."""
        request = self._request
        timeout_us = request.timeout()
        self._deadline = Deadline(timeout_us / 1e6 if timeout_us else None)
        self._inputs = {tensor.name(): tensor for tensor in request.inputs()}
        self.reads_files = not self._model.media.isdisjoint(self._inputs)
        self.record.request_id = _utf8("the request's id", request.request_id)[:LONGEST_ID]
        told = _utf8("a request parameter", request.parameters)
        self.parameters = json.loads(told or "{}")
        self.priority = self.record.priority = read_priority(self.parameters)

    def check(self) -> None:
        """Raise CancelledError when the caller went away, or was answered, or the time is over."""
        if self._answering.locked():
            return  # its answer is on its way
        self._deadline.check()
        if self._is_left or self._answered:
            raise CancelledError("the request was cancelled")

    def ask(self) -> None:
        """Ask Triton whether the caller is still there: it takes 0.2 ms, so no step does it."""
        if self._answering.acquire(blocking=False):
            try:
                self._is_left = self._is_left or (
                    not self._answered and self._sender.is_cancelled()
                )
            finally:
                self._answering.release()

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
        self.amount = self.call.work.of_a_step if self.call.work else self.amount
        self._read_at = time.monotonic()
        seconds["decode_inputs"] = self._read_at - started

    def joins(self, other: "RequestJob") -> bool:
        """Tell whether both may run as one call."""
        return self._model.joins(self.call, other.call)

    def on_step(self, beat: Beat) -> OnStep:
        """Return what a run of this job calls at each step; it starts now.

        Stops a run that nobody waits for, and reports the step where the entry streams.
        """
        self._ran_at = time.monotonic()
        locked = self.record.seconds.get(GPU_LOCK, 0.0)
        self.record.seconds["queue"] += self._ran_at - self._read_at - locked

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
        with self._answering:
            if not self._answered:
                self._sender.send(pb_utils.InferenceResponse(tensors))

    def answer(self, result: Computed) -> None:
        """Encode the result and send it as the final response; count it where it comes late."""
        model = self._model
        if self._answered:
            model.metrics.add_late()
            return
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
        """Send an error as the final response, unless there was one."""
        text, status = one_line(error), CallError
        if isinstance(error, CallError):
            text, status = " ".join(str(error).split()), type(error)
        else:
            self._model.log_error("".join(traceback.format_exception(error)))
        if self._answered:
            return
        self._note_seconds()
        if self._model.decoupled:
            # Triton streams an error's text only: the status goes in, as tritonclient writes it
            text = f"[StatusCode.{status.grpc_status}] {text}"
        # half of a surrogate pair, which JSON can name, is no text to Triton
        text = text.encode(errors="backslashreplace").decode()
        code = getattr(pb_utils.TritonError, status.triton_status)
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


def _utf8(what: str, read: Callable[[], str]) -> str:
    """Return a text of the request. Raises RequestError where it is not UTF-8: HTTP lets it in."""
    try:
        return read()
    except UnicodeDecodeError:
        raise RequestError(f"{what} is not UTF-8; send text encoded as UTF-8") from None
