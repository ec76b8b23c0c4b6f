# SPDX-License-Identifier: Apache-2.0
"""Triton requests <-> jobs: the only module that names `triton_python_backend_utils`.

Triton imports an entry's `1/model.py`, which takes `TritonPythonModel` from here. Torch is
imported in `initialize`, not before: Triton may import model.py once more to complete a config.
"""

import contextlib
import io
import json
import locale
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_diffusers.arrays import Array
from triton_diffusers.contract import PROGRESS
from triton_diffusers.engine import Deadline, Engine
from triton_diffusers.entry_check import load_entry
from triton_diffusers.errors import (
    BusyError,
    CancelledError,
    ConfigError,
    RequestError,
    one_line,
)
from triton_diffusers.info import describe_load
from triton_diffusers.shared_memory import Room

if TYPE_CHECKING:
    from triton_diffusers.step_batching import Lane, StepBatcher


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
        self._name = args["model_name"]
        self._decoupled = model_config.get("model_transaction_policy", {}).get("decoupled", False)
        try:
            self._loaded = load_entry(args, self._log)
        except ConfigError as error:
            pb_utils.Logger.log_error(f"{self._name}: {error}")
            raise pb_utils.TritonModelException(f"{self._name}: {error}") from None
        for warning in self._loaded.warnings:
            pb_utils.Logger.log_warn(f"{self._name}: {warning}")
        self._log(describe_load(self._loaded))
        self._outputs = frozenset(output["name"] for output in model_config["output"])
        self._room = Room()
        self._batcher = self._make_batcher()
        config = self._loaded.config
        workers = config.max_in_flight if self._batcher else 1
        self._engine = Engine(self._run, config.max_queue, workers)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the engine, which answers through their response senders."""
        for request in requests:
            job = _Job(request, self._name, self._decoupled)
            try:
                self._engine.submit(job)
            except BusyError as error:
                job.fail(error)

    def finalize(self) -> None:
        """Finish what was accepted and let the pipeline go."""
        self._engine.close()
        if self._batcher:
            self._batcher.close()
        del self._loaded

    def _log(self, text: str) -> None:
        pb_utils.Logger.log_info(f"{self._name}: {text}")

    def _make_batcher(self) -> "StepBatcher | None":
        from triton_diffusers.step_batching import StepBatcher

        config = self._loaded.config
        return StepBatcher(config.max_batch, self._log) if config.step_batching else None

    def _run(self, job: "_Job") -> dict[str, Array]:
        """Run one request, alone or in its lane."""
        if self._batcher is None:
            return self._answer(job, None)
        with self._batcher.lane() as lane:
            self._loaded.facts["step_batching"] = self._batcher.facts()
            return self._answer(job, lane)

    def _answer(self, job: "_Job", lane: "Lane | None") -> dict[str, Array]:
        from triton_diffusers.call import read_call, refuse_parameters
        from triton_diffusers.runner import Stages, run_call

        stages = Stages({"queue": time.monotonic() - job.accepted_at})
        refuse_parameters(job.parameters(), self._loaded.signature)
        call = stages.timed("inputs", lambda: read_call(job.inputs(), self._loaded))
        wire = run_call(call, self._loaded, stages, job.on_step, lane)
        wanted = job.requested & self._outputs if job.requested else self._outputs
        answer = {name: array for name, array in wire.items() if name in wanted}
        if not answer:
            asked, there = (", ".join(sorted(names)) for names in (job.requested, wire))
            raise RequestError(
                f"none of the outputs asked for ({asked}) comes with this output_format; there are "
                f"{there}"
            )
        self._room.check(answer)
        return answer


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

    def __init__(self, request: Any, model: str, decoupled: bool) -> None:
        self._request = request
        self._sender = request.get_response_sender()
        self._model = model
        self._decoupled = decoupled
        self._answered = False
        timeout_us = request.timeout()
        self._deadline = Deadline(timeout_us / 1e6 if timeout_us else None)
        self.accepted_at = time.monotonic()
        self.requested = frozenset(request.requested_output_names())

    def inputs(self) -> dict[str, Array]:
        """Return the request's input tensors by name."""
        return {t.name(): t.as_numpy() for t in self._request.inputs()}

    def parameters(self) -> dict[str, Any]:
        """Return the request's parameters."""
        text = self._request.parameters()
        return dict(json.loads(text)) if text else {}

    def check(self) -> None:
        """Raise CancelledError when the caller went away or the request's time is over."""
        if self._sender.is_cancelled():
            raise CancelledError("the request was cancelled")
        self._deadline.check()

    def on_step(self, done: int, total: int) -> None:
        """Stop a call that nobody waits for; report a step where the entry streams."""
        self.check()
        if self._decoupled:
            step = np.array([done, total], np.int64)
            self._sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(PROGRESS.name, step)]))

    def answer(self, result: Mapping[str, Array]) -> None:
        """Send the output tensors as the final response."""
        tensors = [pb_utils.Tensor(name, array) for name, array in result.items()]
        self._finish(pb_utils.InferenceResponse(tensors))

    def fail(self, error: BaseException) -> None:
        """Send an error as the final response."""
        code, text = _wording(error)
        if code is None:
            pb_utils.Logger.log_error(
                f"{self._model}: {''.join(traceback.format_exception(error))}"
            )
            code = pb_utils.TritonError.INTERNAL
        self._finish(pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code)))

    def _finish(self, response: Any) -> None:
        if self._answered:
            return
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self._answered = (
            True  # not before: an answer that could not be sent leaves room for an error
        )


def _wording(error: BaseException) -> tuple[int | None, str]:
    """Return Triton's code for an error (None: ours to log) and its text."""
    codes: dict[type[BaseException], int] = {
        RequestError: pb_utils.TritonError.INVALID_ARG,
        BusyError: pb_utils.TritonError.UNAVAILABLE,
        CancelledError: pb_utils.TritonError.CANCELLED,
    }
    code = codes.get(type(error))
    return code, " ".join(str(error).split()) if code is not None else one_line(error)
