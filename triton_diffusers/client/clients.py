# SPDX-License-Identifier: Apache-2.0
"""The two clients: the same procedures (session.py), waited for or awaited."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from triton_diffusers.client.address import PORTS, Address, read_address
from triton_diffusers.client.call import Preview, Progress
from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.result import Result
from triton_diffusers.client.session import Options, Session, SharedMemory, Steps
from triton_diffusers.client.transports.aio import AioTransport
from triton_diffusers.client.transports.grpc import GrpcTransport
from triton_diffusers.client.transports.http import HttpTransport
from triton_diffusers.config.admin_key import is_local
from triton_diffusers.contract import Tensor

T = TypeVar("T")


class DiffusersClient:
    """Calls one entry on a Triton server. Safe to use from several threads.

    url: host:port of the server's gRPC or HTTP endpoint; without a port it is 8001 for gRPC, 8000
    for HTTP, and 443 with TLS. model: the entry's name.
    protocol: "grpc" or "http". Both behave alike, but only gRPC reports progress and tells the
    server to stop when a call is cancelled. ssl, root_certificates: TLS, and a PEM file to trust
    instead of the system's. headers: sent with every request.
    """

    def __init__(
        self,
        url: str,
        model: str,
        protocol: str = "grpc",
        *,
        ssl: bool = False,
        root_certificates: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        address = read_address(url, protocol, ssl, root_certificates, headers)
        self._transport = _open(address, protocol)
        self._session = Session(model, is_local(address.url), self._transport.streams)

    def __enter__(self) -> "DiffusersClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def generate(
        self,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        shared_memory: SharedMemory = "auto",
        shared_memory_bytes: int | None = None,
        on_progress: Progress | None = None,
        on_preview: Preview | None = None,
        progress: bool = False,
        **inputs: Any,
    ) -> Result:
        """Run the pipeline once and wait for what it makes.

        inputs: the entry's inputs by name (see `inputs()`), None for "not sent". Numbers, texts,
        flags and lists of them arrive exactly. Media: PIL images, uint8 arrays (H,W), (H,W,C),
        (N,H,W,C), float32 sound (samples), (channels, samples), paths, bytes, or a list. Any other
        keyword travels in `extra`.
        timeout_s: for the whole call; None waits as long as the pipeline needs. Of an entry that
            streams, the server has two seconds more to end the stream.
        priority: of the requests that wait, lower ones run first.
        shared_memory: "auto" uses it beside the server for large tensors of known size; True
        insists; False never. shared_memory_bytes: the size of the output, if the caller knows it.
        on_progress: called with (step, total) where the entry is decoupled.
        on_preview: called with (step, total, PIL images), small approximations of what is being
        made, where the entry is decoupled and makes pictures or video; `preview_every` says how
        often (1 if left out). progress: show a bar on the terminal, a spinner where no steps come.

        Raises InvalidRequest, ServerBusy, Cancelled, ModelNotFound, ServerUnavailable or
        PipelineError, each a DiffusersClientError. A request is never run twice.
        """
        with shown(progress, self._session.model, on_progress) as told:
            options = Options(
                timeout_s, priority, shared_memory, shared_memory_bytes, told, on_preview
            )
            return self._take(self._session.generate(options, inputs))

    def inputs(self) -> dict[str, Tensor]:
        """Return what the entry accepts: name -> data type, dims and whether it may be left out."""
        return self._take(self._session.inputs())

    def outputs(self) -> dict[str, Tensor]:
        """Return what the entry may send back: name -> data type and dims."""
        return self._take(self._session.outputs())

    def probe(self) -> dict[str, Any]:
        """Ask the model's process how it is: its status, how many requests wait and run, the class
        of its pipeline, and how many frames a second its videos have by themselves.

        Raises ServerBusy where it cannot take requests, and what generate() raises.
        """
        return self._take(self._session.probe())

    def is_ready(self) -> bool:
        """Tell whether the entry takes requests; False also when no server answers."""
        return self._take(self._session.is_ready())

    def close(self) -> None:
        """Close the connection. Calls that still run in other threads are cancelled (gRPC)."""
        self._take(self._session.close())
        self._transport.close()

    def _take(self, steps: Steps[T]) -> T:
        """Run a procedure to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    value = step(self._transport)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(value)
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncDiffusersClient:
    """Calls one entry over gRPC from asyncio: DiffusersClient's methods as coroutines.

    Made inside a running event loop. Cancelling the task cancels the request: the model stops.
    protocol: "grpc", nothing else.
    """

    def __init__(
        self,
        url: str,
        model: str,
        protocol: str = "grpc",
        *,
        ssl: bool = False,
        root_certificates: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        _check_async(protocol)
        address = read_address(url, protocol, ssl, root_certificates, headers)
        self._transport = AioTransport(address)
        self._session = Session(model, is_local(address.url), self._transport.streams)

    async def __aenter__(self) -> "AsyncDiffusersClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def generate(
        self,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        shared_memory: SharedMemory = "auto",
        shared_memory_bytes: int | None = None,
        on_progress: Progress | None = None,
        on_preview: Preview | None = None,
        progress: bool = False,
        **inputs: Any,
    ) -> Result:
        """Run the pipeline once and await what it makes; see DiffusersClient.generate."""
        with shown(progress, self._session.model, on_progress) as told:
            options = Options(
                timeout_s, priority, shared_memory, shared_memory_bytes, told, on_preview
            )
            return await self._take(self._session.generate(options, inputs))

    async def inputs(self) -> dict[str, Tensor]:
        """Return what the entry accepts: name -> data type, dims and whether it may be left out."""
        return await self._take(self._session.inputs())

    async def outputs(self) -> dict[str, Tensor]:
        """Return what the entry may send back: name -> data type and dims."""
        return await self._take(self._session.outputs())

    async def probe(self) -> dict[str, Any]:
        """Ask the model's process how it is; see DiffusersClient.probe."""
        return await self._take(self._session.probe())

    async def is_ready(self) -> bool:
        """Tell whether the entry takes requests; False also when no server answers."""
        return await self._take(self._session.is_ready())

    async def close(self) -> None:
        """Close the connection. Calls that still run in other tasks are cancelled."""
        await self._take(self._session.close())
        await self._transport.close()

    async def _take(self, steps: Steps[T]) -> T:
        """Run a procedure to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    value = await step(self._transport)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(value)
        except StopIteration as end:
            result: T = end.value
            return result


def _check_async(protocol: str) -> None:
    """Refuse what the asyncio client cannot be made with, or where it cannot be made."""
    if protocol != "grpc":
        raise InvalidRequest(
            f"protocol '{protocol}' does not fit AsyncDiffusersClient, which speaks gRPC only: use "
            f"protocol='grpc' and the gRPC port ({PORTS['grpc']} by default), or DiffusersClient."
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequest(
            "AsyncDiffusersClient was made outside a running event loop: make it inside a "
            "coroutine (async with AsyncDiffusersClient(...) as client), or use DiffusersClient."
        ) from None


def _open(address: Address, protocol: str) -> Any:
    return HttpTransport(address) if protocol == "http" else GrpcTransport(address)


@contextmanager
def shown(wanted: bool, label: str, told: Progress | None) -> Iterator[Progress | None]:
    """Show a spinner with seconds, and a bar from the first step that is reported.

    told: is called too. Yields what to call with (step, total). Shows nothing where it is not
    wanted, and where stderr is neither a terminal nor a notebook.
    """
    if not wanted:
        yield told
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield told
        return
    spinner = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    steps = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*spinner, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def on_progress(step: int, total: int) -> None:
            bar.columns = (*steps, TimeElapsedColumn())
            bar.update(task, completed=step, total=total or None)
            if told is not None:
                told(step, total)

        yield on_progress
