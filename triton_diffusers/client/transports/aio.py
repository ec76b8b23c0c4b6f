# SPDX-License-Identifier: Apache-2.0
"""Calls over gRPC for asyncio: the coroutines of grpc.py's methods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_diffusers.client.address import Address
from triton_diffusers.client.call import InferenceRequest
from triton_diffusers.client.entry import ServedEntry, read_entry
from triton_diffusers.client.errors import Cancelled, ServerUnavailable, timed_out
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


class AioTransport:
    """One channel to a server, bound to the event loop that is running when it is made."""

    streams = True

    def __init__(self, address: Address):
        self._url = address.url
        self._metadata = address.metadata
        self._closed = False
        if address.ssl:
            credentials = grpc.ssl_channel_credentials(address.root_certificates())
            self._channel = grpc.aio.secure_channel(address.url, credentials, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address.url, CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def describe(self, model: str, timeout_s: float) -> ServedEntry:
        """Read the entry's config."""
        request = service_pb2.ModelConfigRequest(name=model)
        return read_entry((await self._wait(self._stub.ModelConfig, request, timeout_s)).config)

    async def is_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the entry takes requests."""
        request = service_pb2.ModelReadyRequest(name=model)
        return bool((await self._wait(self._stub.ModelReady, request, timeout_s)).ready)

    async def infer(self, call: InferenceRequest) -> dict[str, Array]:
        """Run a call and return its outputs."""
        request = encode_call(call)
        if call.decoupled:
            return await self._stream(call, request)
        response = await self._wait(self._stub.ModelInfer, request, call.timeout_s)
        return decode_response(call, response)

    async def register(self, region: Region, timeout_s: float) -> None:
        """Let the server map a region."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=region.name, key=region.key, byte_size=region.byte_size
        )
        await self._wait(self._stub.SystemSharedMemoryRegister, request, timeout_s, admin=True)

    async def unregister(self, name: str, timeout_s: float) -> None:
        """Let the server unmap a region."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        await self._wait(self._stub.SystemSharedMemoryUnregister, request, timeout_s, admin=True)

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait."""
        return asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close the channel; calls that still run are cancelled."""
        self._closed = True
        await self._channel.close()

    async def _wait(
        self, method: Any, request: Any, timeout_s: float | None, admin: bool = False
    ) -> Any:
        metadata = self._metadata + (admin_key.metadata(self._url) if admin else ())
        async with self._errors(timeout_s):
            rpc = method(request, timeout=timeout_s, metadata=metadata)
            with cancelling(rpc):
                return await rpc

    async def _stream(self, call: InferenceRequest, request: Any) -> dict[str, Array]:
        reader = StreamReader(call)
        async with self._errors(call.timeout_s):
            rpc = self._stub.ModelStreamInfer(
                iter([request]), timeout=stream_deadline(call.timeout_s), metadata=self._metadata
            )
            with cancelling(rpc):
                async for streamed in rpc:
                    reader.add(streamed)
        return reader.result()

    @asynccontextmanager
    async def _errors(self, timeout_s: float | None) -> AsyncIterator[None]:
        """Turn gRPC's errors into ours. A cancelled task stays cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Cancelled("the client was closed while the request ran") from None
            if timeout_s is not None and not _is_cancelled():
                raise timed_out(timeout_s) from None
            raise
        except grpc.aio.UsageError:
            raise ServerUnavailable("the client is closed") from None
        except grpc.RpcError as error:
            raise rpc_error(error, timeout_s, self._url) from None


def _is_cancelled() -> bool:
    """Tell whether somebody cancels the running task; if not, grpc.aio worded a deadline so."""
    task = asyncio.current_task()
    cancelling = getattr(task, "cancelling", None)  # Python 3.11 or later
    return cancelling is None or cancelling() > 0
