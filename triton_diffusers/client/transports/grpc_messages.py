# SPDX-License-Identifier: Apache-2.0
"""Calls <-> Triton's protobuf messages, for the blocking and the asyncio transport alike.

tritonclient's generated stubs are used without its client classes: those share one stream a client,
lose the status of streamed errors, and attach the callbacks of two threads to one call. A stream's
errors are texts that start with their status: with the metadata `triton_grpc_error`, which is meant
to end a stream with the status itself, a few refusals crash tritonserver 2.51.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from triton_diffusers.client.address import other_protocol
from triton_diffusers.client.call import (
    DTYPE_NAMES,
    WIRE_DTYPES,
    InferenceRequest,
    from_region,
    raw_bytes,
    read_progress,
)
from triton_diffusers.client.errors import (
    DiffusersClientError,
    InvalidRequest,
    PipelineError,
    ServerUnavailable,
    error_for,
    timed_out,
)
from triton_diffusers.media.pixels import Array

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""No 4 MiB limit; no proxy of the environment, as over HTTP; and a server that comes up late is
found within a second instead of two minutes."""

STREAM_GRACE_S = 2.0
"""What the end of a stream may take after the request's time is over: the server ends it then, at
the next step. A deadline of the client's that meets the last response of a stream would keep Triton
from ever unloading the model."""

MAX_MESSAGE_BYTES = (1 << 31) - (1 << 20)
"""Protobuf's limit, less room for everything that is no tensor."""


def encode_call(call: InferenceRequest) -> Any:
    """Build the ModelInferRequest of a call."""
    request = service_pb2.ModelInferRequest(model_name=call.model)
    for name, array in call.inputs.items():
        tensor = request.inputs.add(name=name, datatype=DTYPE_NAMES[array.dtype], shape=array.shape)
        if name in call.input_slots:
            _refer(tensor, call, call.input_slots[name])
        else:
            request.raw_input_contents.append(raw_bytes(array))
    for name in call.outputs or ():
        tensor = request.outputs.add(name=name)
        if name in call.output_slots:
            _refer(tensor, call, call.output_slots[name])
    for name, value in call.parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        else:
            request.parameters[name].int64_param = value
    if call.decoupled:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    _check_size(request.raw_input_contents)
    return request


def _refer(tensor: Any, call: InferenceRequest, slot: Any) -> None:
    if call.region is None:
        raise ValueError("the call has slots but no region")
    tensor.parameters["shared_memory_region"].string_param = call.region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = slot.byte_size
    tensor.parameters["shared_memory_offset"].int64_param = slot.offset


def _check_size(contents: Any) -> None:
    size = sum(len(content) for content in contents)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"the request's inputs are {size} bytes, but a gRPC message holds 2 GiB at most. "
            "Send media as files (PNG, MP4), or use shared_memory=True beside the server."
        )


def decode_response(call: InferenceRequest, response: Any) -> dict[str, Array]:
    """Read the outputs of a ModelInferResponse; those in shared memory are views of the region."""
    outputs = {}
    for index, tensor in enumerate(response.outputs):
        dtype, shape = WIRE_DTYPES[tensor.datatype], tuple(tensor.shape)
        if tensor.name in call.output_slots:
            outputs[tensor.name] = from_region(call, tensor.name, dtype, shape)
            continue
        raw = response.raw_output_contents[index]
        flat = deserialize_bytes_tensor(raw) if dtype == np.object_ else np.frombuffer(raw, dtype)
        outputs[tensor.name] = flat.reshape(shape)
    return outputs


class StreamReader:
    """Collects the responses of one streamed call: progress is reported, the last tensors stay.

    A stream is read to its end also after an error: Triton may never unload a model whose stream
    was left at its last response.
    """

    def __init__(self, call: InferenceRequest):
        self._call = call
        self._outputs: dict[str, Array] | None = None
        self._error: DiffusersClientError | None = None

    def add(self, streamed: Any) -> None:
        """Take one ModelStreamInferResponse."""
        if streamed.error_message:
            self._error = error_for(None, streamed.error_message)
            return
        outputs = decode_response(self._call, streamed.infer_response)
        if outputs and not read_progress(self._call, outputs):
            self._outputs = outputs

    def result(self) -> dict[str, Array]:
        """Return the result once the stream has ended. Raises the error that came over it."""
        if self._error is not None:
            raise self._error
        if self._outputs is None:
            raise PipelineError("the server ended the stream without a result")
        return self._outputs


CANCELLED_IN_CORE = "Internal error from Core"
"""What grpc.aio says, now and then, of a call whose deadline has passed."""


def stream_deadline(timeout_s: float | None) -> float | None:
    """Return the deadline of a stream whose request may take `timeout_s` seconds."""
    return None if timeout_s is None else timeout_s + STREAM_GRACE_S


def rpc_error(error: grpc.RpcError, timeout_s: float | None, url: str) -> DiffusersClientError:
    """Return the error that a failed RPC means."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out(timeout_s)
    if timeout_s is not None and error.details() == CANCELLED_IN_CORE:
        return timed_out(timeout_s)
    failure = error_for(str(error.code()), error.details())
    if error.code() is grpc.StatusCode.UNAVAILABLE and isinstance(failure, ServerUnavailable):
        reason = failure.message.rpartition(": ")[2].rstrip("]")
        return ServerUnavailable(
            f"no server answers at {url}: {reason}{_hint(reason)}", failure.status
        )
    return failure


def _hint(reason: str) -> str:
    """Add what a broken connection may mean: Triton's HTTP port just closes on gRPC."""
    if "HTTP/2" in reason or "http1" in reason:
        return f". The port seems to speak HTTP and not gRPC: use {other_protocol('grpc')}."
    if reason.lower() == "socket closed":
        return (
            ". The server stopped, or the port seems to speak HTTP and not gRPC: then use "
            f"{other_protocol('grpc')}."
        )
    return ""


@contextmanager
def cancelling(rpc: Any) -> Iterator[None]:
    """Cancel a call that is left early (Ctrl-C, an error in on_progress): the model stops."""
    try:
        yield
    except BaseException:
        rpc.cancel()
        raise
