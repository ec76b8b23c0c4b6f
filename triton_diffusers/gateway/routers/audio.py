# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/generate: sound from a text, as vLLM-Omni's clients ask for it."""

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from triton_diffusers.client import Result
from triton_diffusers.contract import AUDIO_FORMATS, OUTPUT_FORMAT
from triton_diffusers.gateway.answers.content import describe_in_headers, document_file
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import Asked, read_fields, refuse_several
from triton_diffusers.gateway.requests.uploads import document, read_request
from triton_diffusers.gateway.schemas import Fields, Number
from triton_diffusers.gateway.state import state_of

router = APIRouter(tags=["audio"])

MEDIA_TYPES = {"wav": "audio/wav", "flac": "audio/flac"}
"""response_format -> what HTTP calls it."""

LENGTHS = ("audio_length_in_s", "audio_duration_s", "audio_duration", "duration")
"""The pipelines' own names for the length in seconds."""

START, END = "audio_start_in_s", "audio_end_in_s"
"""The pipelines' own names where they take both ends instead."""


class AudioFields(Fields):
    """Body of POST /v1/audio/generate, JSON or a form."""

    input: str | None = Field(None, description="the text; prompt is the same")
    prompt: str | None = None
    response_format: Literal["wav", "flac"] | None = Field(None, description="default: wav")
    audio_length: Number | None = Field(None, gt=0, description="seconds")
    audio_start: Number | None = Field(None, ge=0, description="seconds")
    speed: Number | None = Field(None, description="1: sound is not sped up")
    stream: Literal[False] | None = None
    stream_format: Literal["audio"] | None = None

    @model_validator(mode="after")
    def _check_text(self) -> "AudioFields":
        if self.input is not None and self.prompt is not None and self.input != self.prompt:
            raise ValueError("input and prompt are the same field: send one of them")
        return self


@router.post(
    "/v1/audio/generate",
    response_class=Response,
    responses=document_file("The sound.", MEDIA_TYPES.values()),
    openapi_extra=document(AudioFields, files=()),
)
async def generate_audio(request: Request) -> Response:
    """Make sound and answer with it. Whoever goes away stops the model."""
    state = state_of(request)
    model, body = await read_request(request, AudioFields, "audio")
    asked = await read_fields(
        state.settings, state.sizes, model, body, body.response_format or AUDIO_FORMATS[0]
    )
    _set_text(model, asked)
    _set_length(model, asked)
    _check(asked)
    result = await until_gone(request, generate(model, asked, state.settings.timeout_s))
    return _respond(model, asked, result)


def _set_text(model: Model, asked: Asked) -> None:
    if "input" not in model.entry.inputs and "input" in asked.keywords:
        asked.keywords["prompt"] = asked.keywords.pop("input")


def _set_length(model: Model, asked: Asked) -> None:
    """Give the length and the start to the inputs that the pipeline has for them."""
    start, length = (asked.keywords.pop(name, None) for name in ("audio_start", "audio_length"))
    if start is not None and START in model.entry.inputs:
        asked.set(START, start, "audio_start")
    elif start:  # where nothing can start later, all starts at 0
        raise _no_input(model, "audio_start")
    if length is None:
        return
    name = next((name for name in LENGTHS if name in model.entry.inputs), None)
    if name is not None:
        asked.set(name, length, "audio_length")
    elif END in model.entry.inputs:
        begin = asked.keywords.get(START, model.call_kwargs.get(START, 0.0))
        if not isinstance(begin, int | float):
            raise invalid(f"{START}: {begin!r}; send a number of seconds", START)
        asked.set(END, begin + length, "audio_length")
    else:
        raise _no_input(model, "audio_length")


def _no_input(model: Model, field: str) -> ApiError:
    accepted = ", ".join(model.accepted)
    return invalid(f"{field}: '{model.name}' has no such choice. Accepted: {accepted}.", field)


def _check(asked: Asked) -> None:
    """Refuse what an answer that is one sound cannot hold."""
    speed = asked.keywords.pop("speed", 1.0)
    if speed != 1.0:
        raise invalid(f"speed: {speed:g}; sound is made as it is: send 1, or leave it out", "speed")
    asked.keywords.pop("stream_format", None)
    refuse_several(asked, "an answer is one sound")


def _respond(model: Model, asked: Asked, result: Result) -> Response:
    if not result.media:
        raise ApiError(500, f"'{model.name}' made no sound", code="pipeline_failed")
    notes = [*asked.notes, *result.info.get("warnings", ())]
    if len(result.media) > 1:
        notes.append(f"{len(result.media)} sounds were made; the first is sent")
    headers = describe_in_headers(model, result, notes)
    if result.sampling_rate is not None:
        headers["X-Sampling-Rate"] = str(result.sampling_rate)
    kind = MEDIA_TYPES[asked.keywords[OUTPUT_FORMAT.name]]
    return Response(result.media[0], media_type=kind, headers=headers)
