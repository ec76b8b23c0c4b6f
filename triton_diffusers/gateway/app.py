# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: its routers, its errors, and what lives as long as it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from triton_diffusers import __version__
from triton_diffusers.gateway import errors, images, listing, page
from triton_diffusers.gateway.errors import ErrorBody
from triton_diffusers.gateway.models import Models
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.state import State

FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in errors.TYPES if status != 499
}


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the app. settings: by default what TRITON_DIFFUSERS_GATEWAY_* variables say."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models = Models(settings.triton)
        app.state.gateway = State(settings, models)
        try:
            yield
        finally:
            await models.close()

    app = FastAPI(
        title="triton-diffusers",
        version=__version__,
        description=__doc__,
        lifespan=lifespan,
        responses=FAILURES,
    )
    errors.install(app)
    app.include_router(images.router)
    app.include_router(listing.router)
    if settings.page:
        app.include_router(page.router)
    return app
