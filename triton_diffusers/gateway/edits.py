# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/edits and /v1/images/variations: pictures from pictures.

Both take a form with files, as OpenAI's clients send, or JSON with data: URLs. The body is read by
hand, since the model that it names says how a form's texts are meant.
"""

from typing import Any

from fastapi import APIRouter, Request

from triton_diffusers.gateway.errors import invalid
from triton_diffusers.gateway.requests.fields import read_fields
from triton_diffusers.gateway.requests.media import IMAGE_FIELDS
from triton_diffusers.gateway.requests.uploads import document, read_request
from triton_diffusers.gateway.routers.images import STREAMS, answer_images
from triton_diffusers.gateway.schemas import ImageEdit, ImageFields, Images, ImageVariation
from triton_diffusers.gateway.state import state_of

router = APIRouter(tags=["images"])


@router.post(
    "/v1/images/edits",
    response_model=Images,
    response_model_exclude_none=True,
    responses=STREAMS,
    openapi_extra=document(ImageEdit, files=("image", "mask")),
)
async def edits(request: Request) -> Any:
    """Make pictures from one or more pictures, a text and a mask, as far as the model takes them.

    mask: pixels that are transparent are edited; of a mask without such pixels, the white ones.
    """
    return await _answer(request, ImageEdit, "image_edit")


@router.post(
    "/v1/images/variations",
    response_model=Images,
    response_model_exclude_none=True,
    responses=STREAMS,
    openapi_extra=document(ImageVariation, files=("image",)),
)
async def variations(request: Request) -> Any:
    """Make pictures like a picture."""
    return await _answer(request, ImageVariation, "image_edit")


async def _answer(request: Request, declared: type[ImageFields], events: str) -> Any:
    state = state_of(request)
    model, body = await read_request(request, declared, "image")
    asked = await read_fields(state, model, body)
    if not any(name in asked.keywords for name in model.media_inputs):
        takes = ", ".join(model.media_inputs) or "none: see POST /v1/images/generations"
        raise invalid(
            f"{IMAGE_FIELDS[0]}: none is sent; media inputs of '{model.name}': {takes}",
            IMAGE_FIELDS[0],
        )
    return await answer_images(request, model, asked, body, events)
