# SPDX-License-Identifier: Apache-2.0
"""The models that can be called: entries of this project on the tritonservers."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from triton_diffusers.client import AsyncDiffusersClient
from triton_diffusers.client.address import PORTS, Address
from triton_diffusers.client.entry import ServedEntry, read_entry
from triton_diffusers.client.errors import ModelNotFound, error_for
from triton_diffusers.client.transports.grpc_messages import CHANNEL_OPTIONS
from triton_diffusers.config import admin_key
from triton_diffusers.contract import AUDIO_FIELDS, INFO, PICTURE_FIELDS, VIDEO_FIELDS
from triton_diffusers.errors import near_miss
from triton_diffusers.gateway.errors import ApiError, busy, invalid

LOG = logging.getLogger(__name__)

FRESH_S = 2.0
"""How often a server is asked for its models."""
ASK_S = 5.0
"""How long it may take to answer before it counts as down."""
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
PATIENCE_S = 1.0
"""How long a request waits for servers that have not said what it needs to know."""

MAKES = {"video": VIDEO_FIELDS, "image": PICTURE_FIELDS, "audio": AUDIO_FIELDS}
"""What an entry makes -> the outputs that say so, the first kind first: a video may have sound."""


@dataclass(frozen=True)
class Model:
    """An entry that is loaded. parameters: its load-time options as texts, from config.pbtxt."""

    name: str
    entry: ServedEntry
    parameters: dict[str, str]
    client: AsyncDiffusersClient = field(compare=False, repr=False)
    server: "ModelServer" = field(compare=False, repr=False)

    @property
    def hub_id(self) -> str | None:
        """The hub id that the entry was written for; None: a folder, which is not told."""
        model = self.parameters.get("model", "")
        return model if HUB_ID.fullmatch(model) else None

    @property
    def makes(self) -> str:
        """What it returns: "video", "image", "audio" or "arrays"."""
        for kind, fields in MAKES.items():
            if any(field in self.entry.outputs for field in fields):
                return kind
        return "arrays"

    @property
    def call_kwargs(self) -> dict[str, Any]:
        """The entry's own defaults by name. An edit of what the builder wrote may break them."""
        try:
            read = json.loads(
                self.parameters.get("diffusers_call_kwargs", "{}"),
                parse_constant=lambda _: None,  # NaN and Infinity are no JSON for those who read it
            )
        except ValueError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def media_inputs(self) -> list[str]:
        """The inputs that take pictures, videos or sound, the tensor form's name."""
        return [name for name in self.entry.inputs if self.entry.is_media(name)]

    @property
    def accepted(self) -> list[str]:
        """The names of its inputs; media inputs once."""
        return [name for name in self.entry.inputs if not self.entry.is_file(name)]


class ModelServer:
    """One tritonserver and what it last said of its models. Made inside a running event loop.

    A task asks it again and again, so that no request waits for one that hangs.
    """

    def __init__(self, address: Address, admin_key_file: Path | None = None):
        self.url = address.url
        self.models: dict[str, Model] = {}
        """The loaded ones by name; while it does not answer, those that it had."""
        self.loading: frozenset[str] = frozenset()
        self.down: str | None = "it has not answered yet"
        """Why it cannot be used, if it cannot."""
        self._ssl = address.ssl
        self._admin_key_file = admin_key_file
        self._told_of_key = False
        self._triton = triton.InferenceServerClient(
            address.url, ssl=address.ssl, channel_args=CHANNEL_OPTIONS
        )
        self._asked_at = float("-inf")
        """When the last question that was answered, or failed, was asked."""
        self._question: asyncio.Task[None] | None = None
        self._doubted = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    @property
    def is_unknown(self) -> bool:
        """Whether it has neither answered nor failed to."""
        return self._asked_at == float("-inf")

    def doubt(self) -> None:
        """Ask anew soon: a call has failed as if what is known were old."""
        self._doubted.set()

    async def ask_after(self, moment: float) -> None:
        """Return when a question asked after `moment` has been answered; callers share one."""
        while self._asked_at < moment:
            if self._question is None or self._question.done():
                self._question = asyncio.create_task(self._ask())
            await asyncio.shield(self._question)

    async def close(self) -> None:
        """Close the connections; calls that still run are cancelled."""
        for task in (self._watching, self._question):
            if task is not None:
                task.cancel()
        clients = [model.client for model in self.models.values()]
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
        await self._triton.close()

    async def _watch(self) -> None:
        while True:
            await self.ask_after(time.monotonic())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._doubted.wait(), FRESH_S)
            self._doubted.clear()

    async def _ask(self) -> None:
        asked_at = time.monotonic()
        try:
            states = await self._states()
            ready = [name for name, state in states.items() if state == "READY"]
            configs = await asyncio.gather(*(self._config(name) for name in ready))
        except InferenceServerException as error:
            self._set_down(_reason(error_for(error.status(), error.message()).message))
        except Exception as error:
            LOG.exception("%s: its answer cannot be read", self.url)
            self._set_down(f"its answer cannot be read: {error}")
        else:
            self.loading = frozenset(n for n, state in states.items() if state == "LOADING")
            self._set_models([config for config in configs if config is not None])
        self._asked_at = asked_at

    async def _states(self) -> dict[str, str]:
        """Return each model's state; without the server's key only of those that are ready."""
        try:
            index = await self._triton.get_model_repository_index(
                headers=dict(self._admin_metadata()), client_timeout=ASK_S
            )
            return {listed.name: listed.state for listed in index.models}
        except InferenceServerException as error:
            if not admin_key.is_refusal(error.message()):
                raise
            if self._admin_key_file is not None and not self._told_of_key:
                file, self._told_of_key = self._admin_key_file, True
                LOG.warning("%s does not accept the key of '%s'", self.url, file)
        told = await self._triton.get_inference_statistics(client_timeout=ASK_S)
        return {stats.name: "READY" for stats in told.model_stats}

    def _admin_metadata(self) -> admin_key.Metadata:
        """Return the key, as it is now: a server that was started again may have another one."""
        file = self._admin_key_file
        if file is None:
            return admin_key.metadata(self.url)
        return admin_key.as_metadata(admin_key.read_key_file(file))

    async def _config(self, name: str) -> Any:
        try:
            told = await self._triton.get_model_config(name, client_timeout=ASK_S)
        except InferenceServerException as error:
            if isinstance(error_for(error.status(), error.message()), ModelNotFound):
                return None  # unloaded since it was listed
            raise
        return told.config

    def _set_models(self, configs: list[Any]) -> None:
        """Keep what is served. A client that is dropped closes when its last call has ended."""
        ours = [c for c in configs if INFO.name in (output.name for output in c.output)]
        models = {config.name: self._model(config) for config in ours}
        if self.down is not None or models.keys() != self.models.keys():
            LOG.info("%s serves: %s", self.url, ", ".join(sorted(models)) or "nothing")
        self.models, self.down = models, None

    def _set_down(self, reason: str) -> None:
        if self.down is None or self.is_unknown:
            LOG.warning("%s does not answer: %s", self.url, reason)
        self.down, self.loading = reason, frozenset()

    def _model(self, config: Any) -> Model:
        known = self.models.get(config.name)
        url = ("grpcs://" if self._ssl else "") + self.url
        client = known.client if known else AsyncDiffusersClient(url, config.name)
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        return Model(config.name, read_entry(config), parameters, client, self)


class Models:
    """The models of all servers. Made inside a running event loop."""

    def __init__(self, addresses: Sequence[Address], admin_key_file: Path | None = None):
        self.servers = [ModelServer(address, admin_key_file) for address in addresses]
        self._turn = 0

    async def all(self) -> list[Model]:
        """Return every model once, by name. Raises ApiError 502 when no server answers."""
        found: dict[str, Model] = {}
        for server in await self._answering():
            found = server.models | found
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

    async def named(self, name: str) -> Model:
        """Return the model of that name or hub id; of several equal ones, each in turn."""
        holding = _holding(await self._answering(), name)
        if not holding:  # one that was loaded a moment ago is not known yet
            await self._ask_anew()
            holding = _holding(await self._answering(), name)
        if not holding:
            raise self._missing(name)
        self._turn += 1
        return holding[self._turn % len(holding)]

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _answering(self) -> list[ModelServer]:
        """Return the servers that can be used. Raises ApiError 502 when there is none."""
        unknown = [server for server in self.servers if server.is_unknown]
        await _in_time([server.ask_after(0) for server in unknown])
        if all(server.down for server in self.servers):
            await self._ask_anew()
        answering = [server for server in self.servers if server.down is None]
        if not answering:
            reasons = "; ".join(f"{server.url}: {server.down}" for server in self.servers)
            raise ApiError(502, f"no tritonserver answers: {reasons}", code="upstream_unavailable")
        return answering

    async def _ask_anew(self) -> None:
        now = time.monotonic()
        await _in_time([server.ask_after(now) for server in self.servers])

    def _missing(self, name: str) -> ApiError:
        """Say why there is no model of that name: it is loading, its server is down, or unknown."""
        if any(name in server.loading for server in self.servers):
            return busy(f"model '{name}' is being loaded; send it again later")
        down = [server for server in self.servers if server.down is not None]
        for server in down:
            if _holding([server], name):
                text = f"model '{name}' is on {server.url}, which does not answer: {server.down}"
                return ApiError(502, text, param="model", code="upstream_unavailable")
        names = sorted({known for server in self.servers for known in server.models})
        also = "".join(f" {server.url} does not answer: {server.down}." for server in down)
        return ApiError(
            404,
            f"model '{name}' is not served.{near_miss(name, names)} "
            f"Served: {', '.join(names) or 'none'}.{also}",
            param="model",
            code="model_not_found",
        )


def _reason(text: str) -> str:
    """Shorten gRPC's words, and add what they may mean: Triton's HTTP port closes on gRPC."""
    reason = text.rpartition(": ")[2]
    if reason.lower() == "socket closed" or "HTTP/2" in reason or "http1" in reason:
        return f"{reason}; it may not be the gRPC port, which is {PORTS['grpc']} by default"
    return reason


async def _in_time(questions: list[Awaitable[None]]) -> None:
    """Wait for answers, but not for long: the questions go on by themselves."""
    if questions:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*questions), PATIENCE_S)


def _holding(servers: Sequence[ModelServer], name: str) -> list[Model]:
    """Return the models of that name, or of that hub id. Raises ApiError 400 where two have it."""
    named = [server.models[name] for server in servers if name in server.models]
    if named:
        return named
    models = [m for server in servers for m in server.models.values() if m.hub_id == name]
    names = sorted({model.name for model in models})
    if len(names) > 1:
        raise invalid(
            f"model '{name}' is served with different options: name one of {', '.join(names)}",
            "model",
            "model_required",
        )
    return models


def _only(fitting: list[Model], makes: Sequence[str]) -> Model:
    if len(fitting) == 1:
        return fitting[0]
    kinds = " or ".join(makes)
    listed = ", ".join(model.name for model in fitting)
    text = (
        f"name a model: there are several that make {kinds}: {listed}"
        if fitting
        else f"no model is served that makes {kinds}: see GET /v1/models"
    )
    raise invalid(text, "model", "model_required")
