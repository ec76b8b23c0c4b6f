# SPDX-License-Identifier: Apache-2.0
"""GET /v1/models, /v1/models/{id}, /health, /health/live."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from triton_diffusers.contract import (
    AUDIO_FORMATS,
    FPS,
    IMAGE_FORMATS,
    OWN_INPUTS,
    PREVIEW_EVERY,
    VIDEO_FORMATS,
)
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.state import state_of

router = APIRouter(tags=["models"])


FORMATS = {"image": IMAGE_FORMATS, "video": VIDEO_FORMATS, "audio": AUDIO_FORMATS}
"""What a model makes -> the values of its `output_format`, the one taken by default first."""

ABOUT = {tensor.name: tensor.about for tensor in (*OWN_INPUTS, FPS, PREVIEW_EVERY)}


class InputDescription(BaseModel):
    """An input as the entry lists it. dims: -1 is any size."""

    name: str
    data_type: str
    dims: list[int]
    required: bool
    media: bool
    default: Any = Field(None, description="what the entry's diffusers_call_kwargs set, if they do")
    about: str | None = Field(None, description="inputs that every entry has: what they do")


class ModelDescription(BaseModel):
    """OpenAI's model object, and what the entry says of itself."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str
    makes: str
    hub_id: str | None = Field(description="the Hugging Face model; null: a folder of the server")
    streams: bool
    formats: list[str] = Field(description="files that it can answer with, the default first")
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


@router.get("/health/live", tags=["operations"])
async def live() -> dict[str, Any]:
    """Tell that the gateway runs, whatever its tritonservers do."""
    return {"status": "ok"}


def describe(model: Model) -> ModelDescription:
    """Describe a model for the API and the page."""
    defaults = model.call_kwargs
    return ModelDescription(
        id=model.name,
        owned_by=model.hub_id.partition("/")[0] if model.hub_id else "triton-diffusers",
        makes=model.makes,
        hub_id=model.hub_id,
        streams=model.entry.decoupled,
        formats=list(FORMATS.get(model.makes, ())),
        inputs=[
            InputDescription(
                name=name,
                data_type=tensor.data_type,
                dims=list(tensor.dims),
                required=not tensor.optional,
                media=model.entry.is_media(name),
                default=defaults.get(name),
                about=ABOUT.get(name),
            )
            for name, tensor in model.entry.inputs.items()
            if not model.entry.is_file(name)
        ],
        outputs=list(model.entry.outputs),
    )
