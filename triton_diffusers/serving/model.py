# SPDX-License-Identifier: Apache-2.0
"""One instance of an entry in Triton: its pipeline, its engine, and what a job asks of them.

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
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from triton_diffusers.calls.arguments import Call, names_of_media
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import is_decoupled
from triton_diffusers.engine.engine import Engine
from triton_diffusers.engine.gpu_lock import GpuLock
from triton_diffusers.engine.jobs import Beat, Running, fail, is_wanted
from triton_diffusers.engine.loops import Run, one_run_at_a_time, side_by_side
from triton_diffusers.engine.patience import LEAST_S, UNKNOWN_S, Patience
from triton_diffusers.errors import CancelledError, ConfigError
from triton_diffusers.loading.entry import load_entry
from triton_diffusers.media.pixels import Array
from triton_diffusers.placement.devices import forget_peak
from triton_diffusers.running.info import describe_load, describe_model
from triton_diffusers.running.record import BATCH, GPU_LOCK, WHOLE
from triton_diffusers.running.request_batching import RequestBatcher
from triton_diffusers.running.run import Computed, compute
from triton_diffusers.running.step_batching import Lane, StepBatcher
from triton_diffusers.serving.job import RequestJob
from triton_diffusers.serving.metrics import EngineState, Metrics
from triton_diffusers.serving.shared_memory import Room, own_growth


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
        region = getattr(pb_utils, "shared_memory", None)  # newer servers may hide it
        self._room = Room(in_region=getattr(region, "free_memory", None), growth=own_growth())
        self._sending = threading.Lock()
        self._lanes: StepBatcher | None = None
        self._batcher: RequestBatcher | None = None
        self._told = describe_model(self.loaded)
        name = self.loaded.config.gpu_lock
        try:
            self._gpu_lock = None if name is None else GpuLock(name)
        except ConfigError as error:
            raise pb_utils.TritonModelException(f"{self.name}: {error}") from None
        self._locked_out = 0
        self._engine = self._start_engine(self.loaded.config)
        self.metrics = self._start_metrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the engine, which answers through their response senders."""
        for request in requests:
            job = RequestJob(request, self)
            try:
                job.read_head()
                if job.is_probe():
                    job.answer_probe(self._engine.health() | self._told)
                else:
                    job.record.queue_length = self._engine.waiting
                    self._engine.submit(job)
            except Exception as error:
                fail(job, error)  # what it raises would have Triton answer all of them again

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

    def send(self, wire: Mapping[str, Array], job: RequestJob) -> None:
        """Send output tensors as a job's final response, where they fit the shared memory."""
        with self._sending:
            self._room.check(wire)
            job.finish([pb_utils.Tensor(name, array) for name, array in wire.items()])

    def _start_engine(self, config: ServeConfig) -> Engine:
        work, max_batch, max_in_flight = one_run_at_a_time(self._in_turn(self._run_one)), 1, 1
        if config.step_batching:
            self._lanes = StepBatcher(config.max_batch, self.log)
            max_in_flight = config.max_in_flight
            work = side_by_side(self._lanes, max_in_flight, self._start_lane)
        elif config.request_batching:
            self._batcher = RequestBatcher(self.loaded, config.max_batch, self.log)
            work, max_batch = one_run_at_a_time(self._in_turn(self._run_together)), config.max_batch
        compiles = config.torch_compile != "off"
        return Engine(
            work,
            config.max_queue,
            max_batch,
            max_in_flight,
            Patience(config.stuck_after_s, UNKNOWN_S if compiles else LEAST_S),
            self.log_error,
        )

    def _start_metrics(self, args: Mapping[str, str]) -> Metrics:
        def state() -> EngineState:
            health = self._engine.health()
            forwards = self._lanes.forwards if self._lanes else {}
            return EngineState(
                health["waiting"], health["running"], self._locked_out, dict(forwards)
            )

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

    def _run_one(self, jobs: Sequence[RequestJob], beat: Beat) -> list[Any]:
        (job,) = jobs
        forget_peak(self.loaded.device)
        return [compute(job.call, self.loaded, job.on_step(beat))]

    def _in_turn(self, run: Run) -> Run:
        """Have runs wait for those of other entries with the same `gpu_lock`."""
        lock = self._gpu_lock
        if lock is None:
            return run

        def run_in_turn(jobs: Sequence[RequestJob], beat: Beat) -> Sequence[Any]:
            def is_any_wanted() -> bool:
                beat()  # the call that has the lock is watched where it runs
                wanted = [is_wanted(job) for job in jobs]  # each is answered where it is not
                return any(wanted)

            started, self._locked_out = time.monotonic(), len(jobs)
            try:
                with lock.held(is_any_wanted) as has_turn:
                    self._locked_out = 0
                    for job in jobs:
                        job.record.seconds[GPU_LOCK] = time.monotonic() - started
                    gone = CancelledError("the request was cancelled")
                    return run(jobs, beat) if has_turn else [gone] * len(jobs)
            finally:
                self._locked_out = 0

        return run_in_turn

    def _run_together(self, jobs: Sequence[RequestJob], beat: Beat) -> list[Any]:
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
        assert isinstance(job, RequestJob)

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
