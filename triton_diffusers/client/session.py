# SPDX-License-Identifier: Apache-2.0
"""What a call consists of, written once for both clients.

Every procedure is a generator of steps. A step is a function of the transport; the client takes it
(or awaits it) and sends its value back in, or throws its error in. The order of things, retries and
cleaning up stand here; waiting stands in the clients.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from triton_diffusers.client.call import InferenceRequest, Preview, Progress
from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.errors import (
    Cancelled,
    DiffusersClientError,
    InvalidRequest,
    PipelineError,
    ServerUnavailable,
)
from triton_diffusers.client.regions import Region
from triton_diffusers.client.request import build_inputs, without_extra
from triton_diffusers.client.result import Result
from triton_diffusers.client.sizes import OutputSizes, plan_region
from triton_diffusers.client.values import NUMPY_DTYPES
from triton_diffusers.config import admin_key
from triton_diffusers.contract import INFO, OUTPUT_BASE64, PREVIEW_EVERY, Tensor
from triton_diffusers.media.pixels import Array

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[Any], Any]
Steps = Generator[Step, Any, T]

SharedMemory = Literal["auto", True, False]

QUESTION_TIMEOUT_S = 20.0
"""For everything but a generation: descriptions, readiness, shared memory."""

CLOSE_PATIENCE_S = 2.0
"""How long closing waits for the server to let go of the regions of cancelled calls."""

RELEASE_PATIENCE_S = 0.2
"""The same after an answer: the server lets go a moment after it has sent it."""


@dataclass(frozen=True)
class Options:
    """How a call is made, apart from its inputs."""

    timeout_s: float | None = None
    priority: int = 0
    shared_memory: SharedMemory = "auto"
    shared_memory_bytes: int | None = None
    on_progress: Progress | None = None
    on_preview: Preview | None = None


class Session:
    """One entry on one server, as far as this client knows it."""

    def __init__(self, model: str, local: bool, streams: bool):
        self.model = model
        self._streams = streams
        self._no_shared_memory = "" if local else "the server is not on this machine"
        self._entry: ServedEntry | None = None
        self._sizes = OutputSizes()
        self._leftovers: set[str] = set()
        """Regions that the server would not give up yet: a cancelled call still writes there."""

    def inputs(self) -> Steps[dict[str, Tensor]]:
        """Read what the entry accepts, anew."""
        return dict((yield from self._describe()).inputs)

    def outputs(self) -> Steps[dict[str, Tensor]]:
        """Read what the entry may return, anew."""
        return dict((yield from self._describe()).outputs)

    def is_ready(self) -> Steps[bool]:
        """Ask whether the entry takes requests; a server that does not answer has none."""
        try:
            ready: bool = yield lambda transport: transport.is_ready(self.model, QUESTION_TIMEOUT_S)
        except DiffusersClientError:
            return False
        return ready

    def probe(self) -> Steps[dict[str, Any]]:
        """Ask the model's process how it is. Nothing runs: what Triton requires is sent blank."""
        entry = yield from self._describe()
        self._refuse_stream(entry)
        blanks = {n: _blank(t) for n, t in entry.inputs.items() if not t.optional}
        call = InferenceRequest(
            self.model,
            blanks,
            entry.decoupled,
            QUESTION_TIMEOUT_S,
            outputs=(INFO.name,),
            probe=True,
        )
        outputs: dict[str, Array] = yield lambda transport: transport.infer(call)
        return Result(outputs).info

    def generate(self, options: Options, keywords: Mapping[str, Any]) -> Steps[Result]:
        """Run a call.

        A refusal may mean that the entry was changed since its description was read: then, and
        only then, the request is built and sent a second time. The first one did not run.
        """
        _check(options)
        known = self._entry
        if known is not None and not keywords.keys() <= known.inputs.keys():
            known = None  # an input of a newer description must not end up in `extra`
        entry = known or (yield from self._describe(options.timeout_s))
        try:
            return (yield from self._attempt(entry, options, keywords))
        except InvalidRequest:
            if known is None:
                raise
            entry = yield from self._describe(options.timeout_s)
            if entry == known:
                raise
        return (yield from self._attempt(entry, options, keywords))

    def close(self) -> Steps[None]:
        """Give back what the server still holds for this client, as far as it lets go in time."""
        yield from self._sweep(self._leftovers, CLOSE_PATIENCE_S)

    def _describe(self, timeout_s: float | None = None) -> Steps[ServedEntry]:
        patience_s = min(timeout_s or QUESTION_TIMEOUT_S, QUESTION_TIMEOUT_S)
        entry: ServedEntry = yield lambda transport: transport.describe(self.model, patience_s)
        if entry != self._entry:
            self._entry, self._sizes = entry, OutputSizes()
        return entry

    def _attempt(
        self, entry: ServedEntry, options: Options, keywords: Mapping[str, Any]
    ) -> Steps[Result]:
        self._refuse_stream(entry)
        yield from self._sweep()
        keywords = _with_previews(entry, options, keywords)
        call = InferenceRequest(
            model=self.model,
            inputs=build_inputs(entry, keywords),
            decoupled=entry.decoupled,
            timeout_s=options.timeout_s,
            on_progress=options.on_progress,
            on_preview=options.on_preview,
            priority=options.priority,
        )
        try:
            outputs = yield from self._run(entry, call, options)
        except InvalidRequest as error:
            raise without_extra(error, keywords) from None
        return Result(outputs, base64=bool(keywords.get(OUTPUT_BASE64.name)))

    def _refuse_stream(self, entry: ServedEntry) -> None:
        if entry.decoupled and not self._streams:
            raise InvalidRequest(
                f"entry '{entry.name}' streams its progress, which HTTP cannot carry with tensors. "
                "Use protocol='grpc' (and the gRPC port)."
            )

    def _run(
        self, entry: ServedEntry, call: InferenceRequest, options: Options
    ) -> Steps[dict[str, Array]]:
        """Send a call, through shared memory where that is wanted, possible and worth it."""
        outputs: dict[str, Array]
        if options.shared_memory is True and self._no_shared_memory:
            raise ServerUnavailable(f"shared memory is not usable: {self._no_shared_memory}")
        if options.shared_memory is False or self._no_shared_memory:
            outputs = yield lambda transport: transport.infer(call)
            return outputs
        key = self._sizes.key(entry, call.inputs)
        plan = plan_region(
            entry, call.inputs, self._sizes.expected(key), options.shared_memory_bytes
        )
        region = None if plan is None else (yield from self._make_region(plan.byte_size, options))
        if plan is None or region is None:
            outputs = yield lambda transport: transport.infer(call)
        else:
            placed = replace(
                call,
                region=region,
                input_slots=plan.inputs,
                output_slots=plan.outputs,
                outputs=tuple(entry.outputs) if plan.outputs else None,
            )
            outputs = yield from self._run_in_region(placed, region, key)
        self._sizes.learn(key, outputs)
        return outputs

    def _make_region(self, byte_size: int, options: Options) -> Steps[Region | None]:
        """Make a region and let the server map it; None where that does not work and need not."""
        try:
            region = Region(byte_size)
        except OSError as error:
            if options.shared_memory is True:
                raise ServerUnavailable(f"no shared memory of {byte_size} bytes: {error}") from None
            return None
        try:
            yield lambda transport: transport.register(region, QUESTION_TIMEOUT_S)
        except BaseException as error:
            if _is_refusal(error):
                self._no_shared_memory = f"the server refuses it: {error}"
                if options.shared_memory is True:
                    raise ServerUnavailable(f"shared memory is not usable: {error}") from None
                LOG.warning("shared memory is not used, large tensors take longer: %s", error)
                return None
            self._leftovers.add(region.name)
            raise
        finally:
            region.unlink()
        return region

    def _run_in_region(
        self, call: InferenceRequest, region: Region, key: Any
    ) -> Steps[dict[str, Array]]:
        answered = False
        try:
            for name, slot in call.input_slots.items():
                region.write(slot, call.inputs[name])
            outputs: dict[str, Array] = yield lambda transport: transport.infer(call)
            answered = True
        except DiffusersClientError as error:
            answered = not isinstance(error, Cancelled)
            if "shared memory size specified" in error.message:
                self._sizes.forget(key)
                error.args = (f"{error.message}. Send it again with shared_memory=False.",)
            raise
        finally:
            self._leftovers.add(region.name)
            yield from self._sweep({region.name} if answered else frozenset(), RELEASE_PATIENCE_S)
        return outputs

    def _sweep(
        self, awaited: AbstractSet[str] = frozenset(), patience_s: float = 0.0
    ) -> Steps[None]:
        """Unregister what is left; wait as long as `awaited` ones are refused.

        The server refuses to let go of a region that it may still write to.
        """
        until = time.monotonic() + patience_s
        while True:
            for name in tuple(self._leftovers):
                with suppress(DiffusersClientError):
                    yield partial(_unregister, name)
                    self._leftovers.discard(name)
            if not self._leftovers & awaited or time.monotonic() >= until:
                return
            yield lambda transport: transport.pause(0.002)


def _with_previews(
    entry: ServedEntry, options: Options, keywords: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Ask for a preview with every step where on_preview is given; for none where there are none.

    An entry without previews refuses `preview_every` only if nobody said that they are a bonus.
    """
    if options.on_preview is None:
        return keywords
    name = PREVIEW_EVERY.name
    if name in entry.inputs:
        return {**keywords, name: keywords.get(name) or 1}
    return {n: value for n, value in keywords.items() if n != name}


def _blank(tensor: Tensor) -> Array:
    """Return the smallest value that a tensor may have."""
    shape = tuple(max(1, size) for size in tensor.dims)
    dtype = NUMPY_DTYPES[tensor.data_type]
    return np.full(shape, b"", dtype) if dtype == np.object_ else np.zeros(shape, dtype)


def _is_refusal(error: BaseException) -> bool:
    """Tell whether the server will map no region: it cannot open the file, or wants its key."""
    if isinstance(error, PipelineError):  # INTERNAL
        return True
    return isinstance(error, DiffusersClientError) and admin_key.is_refusal(error.message)


def _unregister(name: str, transport: Any) -> Any:
    return transport.unregister(name, QUESTION_TIMEOUT_S)


def _check(options: Options) -> None:
    """Refuse options that could only be a mistake."""
    if options.timeout_s is not None and not options.timeout_s > 0:
        raise InvalidRequest(f"timeout_s is {options.timeout_s}, but must be above 0, or None.")
    if options.shared_memory not in ("auto", True, False):
        raise InvalidRequest(
            f"shared_memory is {options.shared_memory!r}, but must be 'auto', True or False."
        )
    if options.shared_memory_bytes is not None and options.shared_memory_bytes <= 0:
        raise InvalidRequest("shared_memory_bytes must be above 0, or None.")
