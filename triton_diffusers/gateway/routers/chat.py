# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions, for clients that ask for pictures through chat.

The last message of the user is the request: its texts are the prompt, its pictures the inputs. A
pipeline has no memory and takes no instructions, so that other messages are left out, with a note.
"""

import json
import time
import uuid
from typing import Any

from fastapi import APIRouter, Request

from triton_diffusers.client import Result
from triton_diffusers.contract import OUTPUT_FORMAT
from triton_diffusers.gateway.answers.streaming import EventCall, stream
from triton_diffusers.gateway.calls import generate, until_gone
from triton_diffusers.gateway.errors import invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.fields import CHAT, COSMETIC, PROMPT, Asked, read_fields
from triton_diffusers.gateway.requests.uploads import BoundedRoute
from triton_diffusers.gateway.results import check_size
from triton_diffusers.gateway.routers.images import STREAMS, data_url
from triton_diffusers.gateway.schemas import (
    ChatAnswer,
    ChatChoice,
    ChatCompletion,
    ChatImage,
    ChatMessage,
    ImageFields,
    ImagePart,
    ImageUrl,
    Message,
    SimplePart,
    TextPart,
)
from triton_diffusers.gateway.settings import ChatContent
from triton_diffusers.gateway.state import GatewayState, state_of

router = APIRouter(tags=["chat"], route_class=BoundedRoute)

ELSEWHERE = {"video": "POST /v1/videos", "audio": "POST /v1/audio/generate"}


@router.post(
    "/v1/chat/completions",
    response_model=ChatAnswer,
    response_model_exclude_none=True,
    responses=STREAMS,
)
async def completions(request: Request, body: ChatCompletion) -> Any:
    """Make pictures from the last message of the user; they come back as data: URLs."""
    state = state_of(request)
    model = await _find(state, body.model)
    asked = await _read(state, model, body)
    if body.stream:
        return await stream(request, _Chunks(state, model, asked, body))
    if body.partial_images:
        raise invalid("partial_images has no effect in a chat", "partial_images")
    result = await until_gone(request, generate(model, asked, state.settings.timeout_s))
    return describe_chat(state, model, asked, body, result)


def describe_chat(
    state: GatewayState, model: Model, asked: Asked, body: ChatCompletion, result: Result
) -> ChatAnswer:
    """Make the JSON answer: one message with every picture; with `n`, a choice for each."""
    file_format = asked.keywords[OUTPUT_FORMAT.name]
    size = check_size(model, asked, result, state.sizes)
    urls = [data_url(file, file_format) for file in result.media]
    messages = [[url] for url in urls] if body.n is not None else [urls]
    form = _content_form(state, body)
    return ChatAnswer(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model.name,
        choices=[
            ChatChoice(index=index, message=_message(form, its_urls))
            for index, its_urls in enumerate(messages)
        ],
        seed=result.seeds[0] if result.seeds else None,
        seeds=result.seeds,
        size=size,
        seconds=result.info.get("seconds", {}),
        notes=[*asked.notes, *result.info.get("warnings", ())],
    )


def _content_form(state: GatewayState, body: ChatCompletion) -> ChatContent:
    """Return what `content` is. vLLM-Omni's clients, which want a list, send their extra_body."""
    form = body.chat_content or state.settings.chat_content
    if form == "auto":
        return "images" if body.extra_body is None else "list"
    return form


def _message(form: ChatContent, urls: list[str]) -> ChatMessage:
    """Make a message of pictures: always in `images`, which most clients read."""
    parts = [ImageUrl(url=url) for url in urls]
    content: str | list[ImagePart] = ""
    if form == "list":
        content = [ImagePart(type="image_url", image_url=part) for part in parts]
    elif form == "markdown":
        content = "\n\n".join(f"![picture]({url})" for url in urls)
    images = [ChatImage(image_url=part, index=index) for index, part in enumerate(parts)]
    return ChatMessage(content=content, images=images)


async def _find(state: GatewayState, name: str | None) -> Model:
    """Return the model that makes pictures; one that makes something else is sent elsewhere."""
    if name is not None:
        model = await state.models.named(name)
        if model.makes in ELSEWHERE:
            raise invalid(
                f"model '{name}' makes {model.makes}, which a chat does not carry: "
                f"use {ELSEWHERE[model.makes]}",
                "model",
            )
    return await state.models.find(name, "image")


async def _read(state: GatewayState, model: Model, body: ChatCompletion) -> Asked:
    """Make fields of the messages, and keywords of all fields."""
    (prompt, images, notes) = read_messages(body.messages)
    sent = body.model_dump(
        exclude_unset=True, exclude={"messages", "response_format", "chat_content"}
    )
    for name, value in (("prompt", prompt), ("image", images)):
        if value and sent.get(name) is not None:
            raise invalid(f"'{name}' is sent twice: as a field, and in a message", name)
        sent |= {name: value} if value else {}
    fields = ImageFields.model_validate(sent)
    asked = await read_fields(
        state.settings, state.sizes, model, fields, cosmetic=(*COSMETIC, *CHAT)
    )
    if PROMPT in model.entry.inputs and PROMPT not in asked.keywords and not images:
        raise invalid(
            f"messages: the user's last one has no text; '{model.name}' makes pictures from one",
            "messages",
        )
    asked.notes.extend(notes)
    if body.response_format is not None:
        asked.notes.append("response_format is ignored: the answer holds data: URLs")
    return asked


def read_messages(messages: list[Message]) -> tuple[str, list[str], list[str]]:
    """Return the prompt, the pictures' texts, and notes on what is left out.

    Raises ApiError 400 where no message is the user's, and for a part that is neither.
    """
    index = next((i for i in reversed(range(len(messages))) if messages[i].role == "user"), None)
    if index is None:
        raise invalid("messages: none has the role 'user', whose text is the prompt", "messages")
    notes = []
    if len(messages) > 1:
        notes.append(
            f"messages: {len(messages) - 1} left out: the model sees the user's last one only"
        )
    content = messages[index].content
    if isinstance(content, str):
        return content, [], notes
    texts: list[str] = []
    images: list[str] = []
    for part in content or []:
        text, image = _read_part(part)
        texts += [text] if text else []
        images += [image] if image else []
    return "\n".join(texts), images, notes


def _read_part(part: TextPart | ImagePart | SimplePart) -> tuple[str | None, str | None]:
    """Return a part's text and its picture."""
    match part:
        case TextPart():
            return part.text, None
        case ImagePart():
            return None, part.image_url.url
        case SimplePart():
            return part.text, part.image


class _Chunks(EventCall):
    """A call whose pictures are the chunks of a chat's stream."""

    last = "data: [DONE]\n\n"

    def __init__(self, state: GatewayState, model: Model, asked: Asked, body: ChatCompletion):
        self._state, self._model, self._asked, self._body = state, model, asked, body
        if body.partial_images:
            asked.notes.append("partial_images is ignored: a chat carries finished pictures only")
        super().__init__(model, asked, state.settings.timeout_s)

    def finish(self, result: Result) -> None:
        """Put a chunk for each choice, and one that ends them and tells the seed."""
        answer = describe_chat(self._state, self._model, self._asked, self._body, result)
        told = answer.model_dump(exclude={"object", "choices"}, exclude_none=True)
        whole = {"id", "created", "model"}
        chunk = {"object": "chat.completion.chunk", **{n: told[n] for n in told if n in whole}}
        for choice in answer.choices:
            delta = choice.message.model_dump(exclude_none=True)
            self._put(chunk | {"choices": [_choice(choice.index, delta, None)]})
        ends = [_choice(choice.index, {}, "stop") for choice in answer.choices]
        self._put(chunk | told | {"choices": ends})

    def _put(self, chunk: dict[str, Any]) -> None:
        self.put(f"data: {json.dumps(chunk)}\n\n")


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
