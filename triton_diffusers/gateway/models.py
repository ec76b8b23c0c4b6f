# SPDX-License-Identifier: Apache-2.0
"""The models that can be called: entries of this project on the tritonservers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from triton_diffusers.client import AsyncDiffusersClient
from triton_diffusers.client.address import Address, read_address
from triton_diffusers.client.entry import Entry, read_entry
from triton_diffusers.client.errors import ServerUnavailable, error_for
from triton_diffusers.contract import AUDIOS, FRAMES, IMAGES, INFO
from triton_diffusers.errors import near_miss
from triton_diffusers.gateway.errors import ApiError, invalid

FRESH_S = 5.0
"""How long what a server said of its models is believed."""
ASK_S = 5.0


@dataclass(frozen=True)
class Model:
    """An entry that is loaded. parameters: its load-time options as texts, from config.pbtxt."""

    name: str
    entry: Entry
    parameters: dict[str, str]
    client: AsyncDiffusersClient = field(compare=False, repr=False)

    @property
    def source(self) -> str:
        """The hub id or folder that the entry was written for."""
        return self.parameters.get("model", "")

    @property
    def makes(self) -> str:
        """What it returns: "video", "image", "audio" or "arrays"."""
        for output, kind in ((FRAMES, "video"), (IMAGES, "image"), (AUDIOS, "audio")):
            if output.name in self.entry.outputs:
                return kind
        return "arrays"

    @property
    def media_inputs(self) -> list[str]:
        """The inputs that take pictures, videos or sound, the tensor form's name."""
        return [name for name in self.entry.inputs if self.entry.is_media(name)]

    @property
    def accepted(self) -> list[str]:
        """The names of its inputs; media inputs once."""
        return [name for name in self.entry.inputs if not self.entry.is_file(name)]


class Server:
    """One tritonserver: its models, asked for anew when what is known of them is old."""

    def __init__(self, url: str):
        self.address: Address = read_address(url, "grpc", False, None, None)
        self._triton = triton.InferenceServerClient(self.address.url, ssl=self.address.ssl)
        self._clients: dict[str, AsyncDiffusersClient] = {}
        self._models: dict[str, Model] = {}
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def models(self, fresh_s: float = FRESH_S) -> dict[str, Model]:
        """Return its loaded models by name. Raises ServerUnavailable."""
        async with self._lock:
            if time.monotonic() - self._read_at > fresh_s:
                self._models = await self._read()
                self._read_at = time.monotonic()
            return self._models

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await self._triton.close()

    async def _read(self) -> dict[str, Model]:
        try:
            index = await self._triton.get_model_repository_index(client_timeout=ASK_S)
            ready = [listed.name for listed in index.models if listed.state == "READY"]
            configs = await asyncio.gather(*(self._config(name) for name in ready))
        except InferenceServerException as error:
            known = error_for(error.status(), error.message())
            raise ServerUnavailable(f"{self.address.url}: {known.message}") from None
        models = [self._model(config) for config in configs if config is not None]
        return {model.name: model for model in models if INFO.name in model.entry.outputs}

    async def _config(self, name: str) -> Any:
        try:
            told = await self._triton.get_model_config(name, client_timeout=ASK_S)
        except InferenceServerException:
            return None  # unloaded since it was listed
        return told.config

    def _model(self, config: Any) -> Model:
        if config.name not in self._clients:
            url = ("grpcs://" if self.address.ssl else "") + self.address.url
            self._clients[config.name] = AsyncDiffusersClient(url, config.name)
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        return Model(config.name, read_entry(config), parameters, self._clients[config.name])


class Models:
    """The models of all servers. Made inside a running event loop."""

    def __init__(self, urls: Sequence[str]):
        self.servers = [Server(url) for url in urls]
        self._turn = 0

    async def all(self) -> list[Model]:
        """Return every model once, by name. Raises ApiError 502 when no server answers."""
        found: dict[str, Model] = {}
        for models in await self._of_each():
            found |= {name: model for name, model in models.items() if name not in found}
        return [found[name] for name in sorted(found)]

    async def find(self, name: str | None, *makes: str) -> Model:
        """Return the model that a request names, by entry or by hub id.

        name: None where the request names none: then the only model that makes what is asked for.
        makes: what the request wants, such as "image".
        Raises ApiError: 404 for an unknown name, 400 for one that makes something else.
        """
        if name is None:
            return _only([model for model in await self.all() if model.makes in makes], makes)
        model = await self.named(name)
        if model.makes not in makes:
            raise invalid(
                f"model '{name}' makes {model.makes}, not {' or '.join(makes)}: see GET /v1/models",
                "model",
            )
        return model

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

    async def named(self, name: str) -> Model:
        """Return the model of that name or hub id; of several equal ones, each in turn."""
        for fresh_s in (FRESH_S, 1.0):  # one that was loaded a moment ago is not known yet
            each = await self._of_each(fresh_s)
            holding = [models[name] for models in each if name in models]
            holding = holding or [m for models in each for m in models.values() if m.source == name]
            if holding:
                self._turn += 1
                return holding[self._turn % len(holding)]
        names = sorted({known for models in each for known in models})
        raise ApiError(
            404,
            f"model '{name}' is not served.{near_miss(name, names)} "
            f"Served: {', '.join(names) or 'none'}.",
            param="model",
            code="model_not_found",
        )

    async def _of_each(self, fresh_s: float = FRESH_S) -> list[dict[str, Model]]:
        told = await asyncio.gather(
            *(server.models(fresh_s) for server in self.servers), return_exceptions=True
        )
        answers = [models for models in told if isinstance(models, dict)]
        if not answers:
            reasons = "; ".join(str(error) for error in told)
            raise ApiError(502, f"no tritonserver answers: {reasons}", code="upstream_unavailable")
        return answers


def _only(fitting: list[Model], makes: Sequence[str]) -> Model:
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(model.name for model in fitting)
    reason = (
        f"there are several that make {' or '.join(makes)}: {listed}"
        if fitting
        else (f"none is served that makes {' or '.join(makes)}")
    )
    raise invalid(f"name a model: {reason}", "model", "model_required")
