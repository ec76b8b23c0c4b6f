# SPDX-License-Identifier: Apache-2.0
"""The fields of a request -> the keywords of a call of its model: the one place that maps names.

A field that the model has an input for is that input. Others are renamed (size, n ...), compared
with how the model was loaded (generator_device ...), or ignored with a note (quality ...). What is
none of these goes to the server as it is, which knows it or refuses it by name. Pictures, videos
and sound become file contents: the client would take a text as a path.
"""

import inspect
import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from triton_diffusers.client import AsyncDiffusersClient, DiffusersClientError
from triton_diffusers.config.options import ServeConfig, named
from triton_diffusers.contract import (
    BYTES_SUFFIX,
    IMAGE_COUNTS,
    OUTPUT_BASE64,
    OUTPUT_FORMAT,
    OUTPUT_QUALITY,
    PREVIEW_EVERY,
)
from triton_diffusers.errors import unknown
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.bodies import check_number
from triton_diffusers.gateway.requests.media import (
    IMAGE_FIELDS,
    IMAGES_FIRST,
    MASK_FIELD,
    input_of,
    mask_input,
    read_mask,
    read_media,
    transparency_of,
)
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.sizes import KnownSizes

PROMPT = "prompt"

MERGED = ("extra_params", "extra_args", "extra_body", "diffusers_kwargs", "video_params")
"""Fields that hold further fields by name."""

OURS = (
    *("model", "response_format", "stream", "partial_images", "stream_progress", "chat_content"),
)
"""Fields that say how to answer."""

COSMETIC = (
    "quality",
    "background",
    "style",
    "user",
    "moderation",
    "input_fidelity",
    "safety_identifier",
)
"""Fields of OpenAI's own models: ignored, with a note."""

CHAT = (
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "max_tokens", "metadata", "modalities", "parallel_tool_calls"),
    *("presence_penalty", "prediction", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "reasoning_effort", "service_tier"),
    *("stop", "store", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs"),
    *("top_p", "verbosity", "web_search_options"),
)
"""Fields of OpenAI's chats that say how to write text: ignored, with a note."""

COUNTS = ("n", "num_outputs_per_prompt")
"""Fields that say how many outputs; the second is vLLM-Omni's."""

RENAMED = (*COUNTS, "size", "output_format", "output_compression")

READ_HERE = (
    *RENAMED,
    *("seconds", "input", "audio_length", "audio_start", "speed", "stream_format"),
)
"""Fields that the gateway itself reads: checked wherever they are sent."""

SET_HERE = (OUTPUT_FORMAT.name, OUTPUT_QUALITY.name, OUTPUT_BASE64.name, PREVIEW_EVERY.name)
"""Inputs of every entry that the gateway itself sets."""

NOT_INPUTS = frozenset(inspect.signature(AsyncDiffusersClient.generate).parameters)
"""Arguments of the client's generate() that are no inputs: never taken from a request."""

SIZE = re.compile(r"(\d{1,5})\s*[xX]\s*(\d{1,5})")


@dataclass(frozen=True)
class Asked:
    """What a request asks of a model. keywords: inputs by name; size: (width, height).

    sent_as: input -> the field that it came from, where that has another name.
    """

    keywords: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    size: tuple[int, int] | None = None
    sent_as: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Any, sent_as: str) -> None:
        """Set an input from a field of another name. Raises ApiError where both are sent."""
        if self.keywords.setdefault(name, value) != value:
            raise invalid(f"{sent_as} and {name} disagree: send one of them", sent_as)
        self.sent_as.setdefault(name, sent_as)


async def read_fields(
    settings: Settings,
    sizes: KnownSizes,
    model: Model,
    body: BaseModel,
    file_format: str = "png",
    cosmetic: Container[str] = COSMETIC,
) -> Asked:
    """Map the fields of a body; awaits pictures that come from other hosts.

    file_format: what the endpoint answers with where the body names no output_format.
    cosmetic: fields that are ignored with a note where the model has no such input.
    Raises ApiError: 400 for what the model cannot take, 413 for a file that is too large.
    """
    sent = _merge(settings, body)
    check_number(sent, settings)
    asked = Asked(size=_read_size(sent.get("size")))
    for name, value in sent.items():
        if name in OURS or name in RENAMED:
            continue
        target = input_of(model, name)
        if target is not None:
            await _add_media(settings, model, asked, target, name, value)
        elif name in cosmetic and name not in model.entry.inputs:
            asked.notes.append(f"{name} is ignored: '{model.name}' has nothing of the kind")
        elif name in named("in_requests") and name not in model.entry.inputs:
            _compare_loaded(model, name, value)
        else:
            refuse_ours(model, name)
            asked.keywords[name] = value
    _set_size(model, asked)
    _set_count(model, asked, _read_count(sent))
    _set_format(asked, sent.get("output_format"), sent.get("output_compression"), file_format)
    sizes.check(model, asked.size, asked.keywords)
    return asked


async def _add_media(
    settings: Settings, model: Model, asked: Asked, target: str, name: str, value: Any
) -> None:
    """Add a media input as file contents."""
    if target in asked.keywords:
        raise invalid(f"'{name}' and another field are both the input '{target}': send one", name)
    asked.sent_as[target] = asked.sent_as[target + BYTES_SUFFIX] = name
    if name == MASK_FIELD:
        asked.keywords[target], note = await read_mask(settings, model, value)
        asked.notes.append(note)
    else:
        asked.keywords[target] = await read_media(settings, name, value)


async def mask_by_transparency(model: Model, asked: Asked) -> None:
    """Let the transparency of the first picture be the mask where none is sent, as OpenAI does."""
    mask = mask_input(model)
    pictures = next((asked.keywords[n] for n in IMAGES_FIRST if n in asked.keywords), None)
    if mask is None or mask in asked.keywords or not pictures:
        return
    try:
        white = await transparency_of(model, IMAGE_FIELDS[0], pictures[0])
    except ApiError:  # the server tells what is wrong with it
        return
    if white is not None:
        asked.keywords[mask] = [white]
        asked.notes.append("no mask is sent: the transparent pixels of image are edited (OpenAI)")


def refuse_several(asked: Asked, reason: str) -> None:
    """Refuse more than one output, where the answer holds one. Raises ApiError 400."""
    for name in IMAGE_COUNTS:
        if asked.keywords.get(name, 1) != 1:
            raise invalid(f"{name}: {reason}; send several requests", asked.sent_as.get(name, name))


async def refuse_unknown(model: Model, asked: Asked) -> None:
    """Refuse what the model will not know, before a job waits for it. Raises ApiError 400.

    A field that is no input may be one of those that travel in `extra`, which the model tells; one
    that does not answer now refuses by itself when the call runs.
    """
    unclear = [name for name in asked.keywords if name not in model.entry.inputs]
    if not unclear:
        return
    try:
        known = (await model.client.probe()).get("extra")
    except DiffusersClientError:
        return
    for name in unclear:
        if isinstance(known, list) and name not in known:
            accepted = [*_accepted(model), *known]
            raise invalid(unknown("field", name, model.name, accepted), name, "unknown_field")


def refuse_ours(model: Model, name: str) -> None:
    """Refuse a name that would set something of the gateway's. Raises ApiError 400."""
    if name in SET_HERE or (name in NOT_INPUTS and name not in model.entry.inputs):
        raise invalid(unknown("field", name, model.name, _accepted(model)), name, "unknown_field")


def _accepted(model: Model) -> list[str]:
    """Return the model's inputs that a request may name."""
    return [name for name in model.accepted if name not in SET_HERE]


def _merge(settings: Settings, body: BaseModel) -> dict[str, Any]:
    """Return what was sent, by name; nulls are not sent."""
    top = {n: v for n, v in body.model_dump(exclude_unset=True).items() if v is not None}
    sent = {name: value for name, value in top.items() if name not in MERGED}
    for holder in MERGED:
        held = top.get(holder, {})
        check_number(held, settings)
        for name, value in held.items():
            if value is None:
                continue
            if name in sent and sent[name] != value:
                raise invalid(f"'{name}' is sent twice with two values, once in {holder}", name)
            if name in OURS:
                raise invalid(f"'{name}' is sent inside {holder}, where it has no effect", name)
            sent[name] = _checked(body, name, value) if name in READ_HERE else value
    return sent


def _checked(body: BaseModel, name: str, value: Any) -> Any:
    """Check a value as if it had been sent as the body's field of that name."""
    if name not in type(body).model_fields:
        return value
    copy = body.model_copy()
    try:
        type(body).__pydantic_validator__.validate_assignment(copy, name, value)
    except ValidationError as error:
        raise invalid(f"{name}: {error.errors()[0]['msg']}", name) from None
    return getattr(copy, name)


def _read_size(text: Any) -> tuple[int, int] | None:
    if text is None or text == "auto":
        return None
    found = SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise invalid(f"size: {text!r}; send 'WIDTHxHEIGHT' such as '1024x1024', or 'auto'", "size")
    return int(found[1]), int(found[2])


def _set_size(model: Model, asked: Asked) -> None:
    if asked.size is None:
        return
    for name, pixels in zip(("width", "height"), asked.size, strict=True):
        if name not in model.entry.inputs:
            raise invalid(
                f"size: '{model.name}' has no input '{name}'; leave size out. "
                f"Accepted: {', '.join(_accepted(model))}.",
                "size",
            )
        asked.set(name, pixels, "size")


def _read_count(sent: dict[str, Any]) -> int | None:
    counts = {name: sent[name] for name in COUNTS if name in sent}
    if len(set(map(str, counts.values()))) > 1:
        raise invalid("n and num_outputs_per_prompt disagree: send one of them", "n")
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise invalid(f"{name}: {count!r}; send a whole number from 1 on", name)
        return count
    return None


def _set_count(model: Model, asked: Asked, n: int | None) -> None:
    if n is None:
        return
    name = next((name for name in IMAGE_COUNTS if name in model.entry.inputs), None)
    if name is not None:
        asked.set(name, n, "n")
    elif n != 1:
        raise invalid(f"n: '{model.name}' makes one output a request; send n=1", "n")


def _set_format(
    asked: Asked, file_format: str | None, compression: int | None, default: str
) -> None:
    asked.keywords[OUTPUT_FORMAT.name] = file_format or default
    if compression is None:
        return
    if file_format not in ("jpeg", "webp"):
        raise invalid(
            "output_compression has no effect without output_format 'jpeg' or 'webp'",
            "output_compression",
        )
    asked.keywords[OUTPUT_QUALITY.name] = max(1, compression)


def _compare_loaded(model: Model, name: str, value: Any) -> None:
    """Refuse what a model cannot change per request, unless it is what it was loaded with."""
    loaded = model.parameters.get(name, getattr(ServeConfig, name))
    same = loaded == str(value) or _as_number(loaded) == _as_number(value) is not None
    if not same:
        option = f"builder add-model --{name.replace('_', '-')} {value}"
        raise invalid(
            f"{name}: {value}; '{model.name}' is loaded with {loaded or 'the default'}, "
            f"which a request cannot change ({option})",
            name,
        )


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
