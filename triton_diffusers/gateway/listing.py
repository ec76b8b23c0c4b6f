# SPDX-License-Identifier: Apache-2.0
"""GET /v1/models, /v1/models/{id}, /health."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.state import state_of

router = APIRouter(tags=["models"])


class InputDescription(BaseModel):
    """An input as the entry lists it. dims: -1 is any size."""

    name: str
    data_type: str
    dims: list[int]
    required: bool
    media: bool


class ModelDescription(BaseModel):
    """OpenAI's model object, and what the entry says of itself."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str
    makes: str
    source: str
    streams: bool
    inputs: list[InputDescription]
    outputs: list[str]


class ModelList(BaseModel):
    """Every model that is served."""

    object: str = "list"
    data: list[ModelDescription]


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the models that are served, each with its inputs."""
    models = await state_of(request).models.all()
    return ModelList(data=[describe(model) for model in models])


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> ModelDescription:
    """Describe one model, by the name of its entry or its hub id."""
    return describe(await state_of(request).models.named(name))


@router.get("/health", tags=["operations"])
async def health(request: Request) -> dict[str, Any]:
    """Tell that the gateway runs and a tritonserver answers; 502 when none does."""
    models = await state_of(request).models.all()
    return {"status": "ok", "models": [model.name for model in models]}


def describe(model: Model) -> ModelDescription:
    """Describe a model for the API and the page."""
    return ModelDescription(
        id=model.name,
        owned_by=model.source.partition("/")[0] if "/" in model.source else "triton-diffusers",
        makes=model.makes,
        source=model.source,
        streams=model.entry.decoupled,
        inputs=[
            InputDescription(
                name=name,
                data_type=tensor.data_type,
                dims=list(tensor.dims),
                required=not tensor.optional,
                media=model.entry.is_media(name),
            )
            for name, tensor in model.entry.inputs.items()
            if not model.entry.is_file(name)
        ],
        outputs=list(model.entry.outputs),
    )
