# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: its routers, its errors, and what lives as long as it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from triton_diffusers import __version__
from triton_diffusers.client.address import read_address
from triton_diffusers.config import admin_key
from triton_diffusers.gateway import errors
from triton_diffusers.gateway.connections import Connections
from triton_diffusers.gateway.errors import ErrorBody
from triton_diffusers.gateway.jobs.jobs import Jobs, open_store
from triton_diffusers.gateway.jobs.runs import Context
from triton_diffusers.gateway.middleware import metrics
from triton_diffusers.gateway.middleware.auth import Auth, settings_keys
from triton_diffusers.gateway.middleware.headers import StrictHeaders
from triton_diffusers.gateway.middleware.limits import Limits
from triton_diffusers.gateway.middleware.metrics import Counted, GatewayMetrics
from triton_diffusers.gateway.middleware.origins import LOOPBACK_HOSTS, Origins
from triton_diffusers.gateway.middleware.stopping import Stopping
from triton_diffusers.gateway.models import Models
from triton_diffusers.gateway.routers import audio, chat, images, listing, page, videos
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.sizes import KnownSizes
from triton_diffusers.gateway.state import GatewayState

FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": about}
    for status, (_, about) in errors.MEANINGS.items()
    if status != 499
}


def create_app(settings: Settings | None = None, *, only_local: bool = False) -> FastAPI:
    """Make the app. settings: by default what TRITON_DIFFUSERS_GATEWAY_* variables say.

    only_local: it listens on loopback, where nobody calls it by another name than settings allow.

    Raises ConfigError for a file of keys or a database that cannot be used, InvalidRequest for an
    address.
    """
    settings = settings or Settings()
    if settings.triton_admin_key_file is not None:
        admin_key.read_key_file(settings.triton_admin_key_file)  # refused at the start, not later
    addresses = [read_address(url, "grpc", False, None, None) for url in settings.triton]
    store, files = open_store(settings)
    counted = GatewayMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        models = Models(addresses, settings.triton_admin_key_file)
        sizes = KnownSizes()
        jobs = Jobs(Context(settings, models, files, sizes), store)
        app.state.gateway = GatewayState(settings, models, jobs, sizes)
        counted.count_jobs = jobs.counts
        jobs.start()
        try:
            yield {"connections": Connections(settings)}  # which each Connection is given
        finally:
            await jobs.close()
            await models.close()

    app = FastAPI(
        title="triton-diffusers",
        version=__version__,
        description="OpenAI's API in front of diffusers pipelines on tritonservers.",
        lifespan=lifespan,
        responses=FAILURES,
        # pages that would load their scripts from other hosts
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.metrics = counted
    _add_middlewares(app, settings, counted, only_local)
    errors.install(app)
    app.include_router(images.router)
    app.include_router(chat.router)
    app.include_router(videos.router)
    app.include_router(audio.router)
    app.include_router(listing.router)
    app.include_router(metrics.router)
    if settings.page:
        app.include_router(page.router)
    return app


def _add_middlewares(
    app: FastAPI, settings: Settings, counted: GatewayMetrics, only_local: bool
) -> None:
    """Add what a request passes before its endpoint; the last one added sees it first."""
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Auth, keys=settings_keys(settings))
    app.add_middleware(Stopping)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    hosts = (*LOOPBACK_HOSTS, *settings.allow_host) if only_local or settings.allow_host else None
    app.add_middleware(Origins, hosts=hosts, origins=settings.cors_origins)
    app.add_middleware(StrictHeaders)
    app.add_middleware(Counted, metrics=counted)
