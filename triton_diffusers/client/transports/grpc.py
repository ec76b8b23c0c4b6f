# SPDX-License-Identifier: Apache-2.0
"""Calls over gRPC, blocking. Safe to use from several threads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_diffusers.client.address import Address
from triton_diffusers.client.call import InferenceRequest
from triton_diffusers.client.entry import ServedEntry, read_entry
from triton_diffusers.client.errors import Cancelled, ServerUnavailable
from triton_diffusers.client.regions import Region
from triton_diffusers.client.transports.grpc_messages import (
    CHANNEL_OPTIONS,
    StreamReader,
    cancelling,
    decode_response,
    encode_call,
    rpc_error,
    stream_deadline,
)
from triton_diffusers.config import admin_key
from triton_diffusers.media.pixels import Array


class GrpcTransport:
    """One channel to a server."""

    streams = True

    def __init__(self, address: Address):
        self._url = address.url
        self._metadata = address.metadata
        if address.ssl:
            credentials = grpc.ssl_channel_credentials(address.root_certificates())
            self._channel = grpc.secure_channel(address.url, credentials, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.url, CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def describe(self, model: str, timeout_s: float) -> ServedEntry:
        """Read the entry's config."""
        request = service_pb2.ModelConfigRequest(name=model)
        return read_entry(self._wait(self._stub.ModelConfig, request, timeout_s).config)

    def is_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the entry takes requests."""
        request = service_pb2.ModelReadyRequest(name=model)
        return bool(self._wait(self._stub.ModelReady, request, timeout_s).ready)

    def infer(self, call: InferenceRequest) -> dict[str, Array]:
        """Run a call and return its outputs."""
        request = encode_call(call)
        if call.decoupled:
            return self._stream(call, request)
        return decode_response(call, self._wait(self._stub.ModelInfer, request, call.timeout_s))

    def register(self, region: Region, timeout_s: float) -> None:
        """Let the server map a region."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=region.name, key=region.key, byte_size=region.byte_size
        )
        self._wait(self._stub.SystemSharedMemoryRegister, request, timeout_s, admin=True)

    def unregister(self, name: str, timeout_s: float) -> None:
        """Let the server unmap a region."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        self._wait(self._stub.SystemSharedMemoryUnregister, request, timeout_s, admin=True)

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close the channel; calls that still run are cancelled."""
        self._channel.close()

    def _wait(self, method: Any, request: Any, timeout_s: float | None, admin: bool = False) -> Any:
        metadata = self._metadata + (admin_key.metadata(self._url) if admin else ())
        with _errors(timeout_s, self._url):
            rpc = method.future(request, timeout=timeout_s, metadata=metadata)
            with cancelling(rpc):
                return rpc.result()

    def _stream(self, call: InferenceRequest, request: Any) -> dict[str, Array]:
        reader = StreamReader(call)
        with _errors(call.timeout_s, self._url):
            rpc = self._stub.ModelStreamInfer(
                iter([request]), timeout=stream_deadline(call.timeout_s), metadata=self._metadata
            )
        with cancelling(rpc):
            responses = iter(rpc)
            while True:
                with _errors(call.timeout_s, self._url):
                    streamed = next(responses, None)
                if streamed is None:
                    return reader.result()
                reader.add(streamed)


@contextmanager
def _errors(timeout_s: float | None, url: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.FutureCancelledError:
        raise Cancelled("the client was closed while the request ran") from None
    except grpc.RpcError as error:
        raise rpc_error(error, timeout_s, url) from None
    except ValueError as error:
        if "channel" not in str(error).lower():
            raise
        raise ServerUnavailable("the client is closed") from None
