# SPDX-License-Identifier: Apache-2.0
"""The bodies of requests and answers: OpenAI's fields, vLLM-Omni's, and ours.

Field by field what becomes of them stands in requests/fields.py. A body may hold any input of
the model besides, by name, as OpenAI's clients send `extra_body`.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from triton_diffusers.config.options import options, traits
from triton_diffusers.config.text import option_type
from triton_diffusers.gateway.errors import invalid
from triton_diffusers.gateway.settings import ChatContent

NO_UNICODE = "a text in it is no valid Unicode (half of a surrogate pair); send characters"


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("send a number, not true or false")
    return value


def _read_object(value: Any) -> Any:
    """Read the JSON text that a form carries where JSON has an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'send a JSON object such as {{"a": 1}}: {error}') from None
        if not is_unicode(value):
            raise ValueError(NO_UNICODE)
    return value


def is_unicode(value: Any) -> bool:
    """Tell whether all texts are valid: JSON can name half of a surrogate pair, as "\\ud800"."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            if not {str, dict, list}.isdisjoint(map(type, item)):
                waiting += item
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                return False
    return True


Whole = Annotated[int, BeforeValidator(_no_flag)]
Number = Annotated[float, BeforeValidator(_no_flag), Field(allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_no_flag), Field(ge=1)]
Positive = Annotated[float, BeforeValidator(_no_flag), Field(gt=0, allow_inf_nan=False)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_read_object)]


class _Inputs(BaseModel):
    """What comes first of `Fields`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, sent: Any) -> Any:
        """Refuse what neither Triton nor an answer can carry. Raises ApiError 400."""
        for name, value in sent.items() if isinstance(sent, dict) else ():
            if not is_unicode([name, value]):
                raise invalid(f"{name}: {NO_UNICODE}", name)
        return sent

    model: str | None = Field(None, description="entry or hub id; needed where several fit")
    negative_prompt: str | None = None
    num_inference_steps: Whole | None = None
    guidance_scale: Number | None = None
    true_cfg_scale: Number | None = None
    seed: Whole | None = Field(None, description="left out: drawn, and told in the answer")


LOADED: dict[str, Any] = {
    option.name: ({float: Number, int: Whole}.get(kind := option_type(option), kind) | None, None)
    for option in options()
    if traits(option).in_requests
}
"""Fields that name what is loaded."""

if TYPE_CHECKING:

    class _Loaded(_Inputs):
        """The fields of `LOADED` are not among these: only their declarations name them."""

else:
    _Loaded = create_model("_Loaded", __base__=_Inputs, **LOADED)


class Fields(_Loaded):
    """What every generating endpoint takes. Nothing that is left out gets a value here."""

    user: str | None = None
    extra_params: JsonObject | None = None
    extra_args: JsonObject | None = None
    extra_body: JsonObject | None = None
    video_params: JsonObject | None = None
    diffusers_kwargs: JsonObject | None = Field(
        None, description="arguments of the pipeline's __call__ by name"
    )


class ImageFields(Fields):
    """What the endpoints that make pictures take."""

    n: Annotated[int, BeforeValidator(_no_flag), Field(ge=1)] | None = Field(
        None, description="pictures; left out: as many as the model makes by itself"
    )
    size: str | None = Field(None, description='"WIDTHxHEIGHT" or "auto"')
    response_format: Literal["b64_json", "url"] | None = Field(
        None, description="url: a data: URL; left out: b64_json"
    )
    output_format: Literal["png", "jpeg", "webp"] | None = Field(None, description="default: png")
    output_compression: Annotated[int, BeforeValidator(_no_flag), Field(ge=0, le=100)] | None = (
        Field(None, description="quality of jpeg and webp, 100 the best")
    )
    quality: str | None = None
    background: str | None = None
    style: str | None = None
    moderation: Any = None
    strength: Number | None = None
    layers: Whole | None = None
    resolution: Whole | None = None
    stream: bool | None = None
    partial_images: Annotated[int, BeforeValidator(_no_flag), Field(ge=0, le=3)] | None = None
    stream_progress: bool | None = Field(
        None, description="also events that tell step and total; ours"
    )


class ImageGeneration(ImageFields):
    """Body of POST /v1/images/generations."""

    prompt: str | None = Field(None, description="needed where the model takes one")


FILE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "description": "data: URL or base64"},
        {
            "type": "object",
            "properties": {"image_url": {"type": "string"}},
            "required": ["image_url"],
        },
    ]
}
FILES_SCHEMA: dict[str, Any] = {
    "anyOf": [*FILE_SCHEMA["anyOf"], {"type": "array", "items": FILE_SCHEMA, "minItems": 1}]
}


class ImageVariation(ImageFields):
    """Body of POST /v1/images/variations. Files of a form, or texts: data: URLs or base64."""

    image: Any = Field(None, description="picture(s)", json_schema_extra=FILES_SCHEMA)
    images: Any = Field(None, description="another name of image", json_schema_extra=FILES_SCHEMA)


class ImageEdit(ImageVariation):
    """Body of POST /v1/images/edits."""

    prompt: str | None = Field(None, description="left out where the model takes none")
    mask: Any = Field(
        None,
        description="transparent pixels are edited; of a mask without any, the white ones",
        json_schema_extra=FILE_SCHEMA,
    )
    input_fidelity: str | None = None


class TextPart(BaseModel):
    """A text in a message."""

    type: Literal["text"]
    text: str


class ImageUrl(BaseModel):
    """Where a picture is: in the URL itself, data:image/png;base64,..."""

    url: str
    detail: str | None = None


class ImagePart(BaseModel):
    """A picture in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ChatImage(ImagePart):
    """A picture of an answer, where LiteLLM, OpenRouter and their clients read it."""

    type: Literal["image_url"] = "image_url"
    index: int


class SimplePart(BaseModel):
    """A text or a picture in a message, as some of vLLM-Omni's clients write it."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = None
    image: str | None = Field(None, description="data: URL or base64")


# of many wrong items the first is told: to describe them all would take seconds
Parts = Annotated[list[TextPart | ImagePart | SimplePart], Field(fail_fast=True)]


def _word_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Say what parts there are, rather than how each kind of them differs from what was sent."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            'send a text, or a list of {"type": "text", "text": "..."} and {"type": "image_url", '
            '"image_url": {"url": "data:image/png;base64,..."}}'
        ) from None


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | Parts | None, WrapValidator(_word_parts)] = None


class ChatCompletion(ImageFields):
    """Body of POST /v1/chat/completions, for models that make pictures."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    num_outputs_per_prompt: Annotated[int, BeforeValidator(_no_flag), Field(ge=1)] | None = None
    response_format: Any = Field(None, description="ignored: the answer holds data: URLs")
    chat_content: ChatContent | None = Field(
        None, description="where `content` has the pictures; left out: --chat-content decides; ours"
    )


class ChatMessage(BaseModel):
    """The answer's pictures, each as {"type": "image_url", "image_url": {"url": "data:..."}}.

    content: a text, empty or with the pictures in Markdown, or the pictures once more.
    """

    role: Literal["assistant"] = "assistant"
    content: str | list[ImagePart]
    images: list[ChatImage]


class ChatChoice(BaseModel):
    """One of the answers: all pictures, or with `n` one of them."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop"] = "stop"
    logprobs: None = None


class ChatAnswer(BaseModel):
    """The answer of a chat. seed: send it again for the same pictures."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    seed: int | None
    seeds: list[int]
    size: str | None
    seconds: dict[str, float]
    notes: list[str]


class ImageData(BaseModel):
    """One picture: its file as base64, or as a data: URL."""

    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class Images(BaseModel):
    """The answer with pictures. seed: send it again for the same ones."""

    created: int
    data: list[ImageData]
    model: str
    seed: int | None
    seeds: list[int]
    size: str | None
    output_format: str
    seconds: dict[str, float] = Field(description="seconds by stage, as the server took them")
    notes: list[str] = Field(description="what was ignored, and the server's warnings")


class VideoFields(Fields):
    """Body of POST /v1/videos and /v1/videos/sync, a form or JSON."""

    prompt: str | None = Field(None, description="needed where the model takes one")
    seconds: Positive | None = Field(
        None, description="length; becomes num_frames by the rate that the video plays at"
    )
    size: str | None = Field(None, description='"WIDTHxHEIGHT" or "auto"')
    width: Count | None = None
    height: Count | None = None
    num_frames: Count | None = None
    fps: Positive | None = Field(None, description="frames a second")
    guidance_scale_2: Number | None = None
    strength: Number | None = None
    max_sequence_length: Whole | None = None
    n: Count | None = Field(None, description="1: a job is one video")
    output_format: Literal["mp4", "gif"] | None = Field(None, description="default: mp4")
    quality: str | None = None
    input_reference: Any = Field(
        None, description="a picture or video: a file in a form, a data: URL or base64 in JSON"
    )
    image_reference: Any = Field(None, description='the same as {"image_url": "data:..."}')


class VideoError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class Video(BaseModel):
    """OpenAI's video object, and what is ours: seed, notes, media_type."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(description="0-100; from models that tell their steps, else 0 or 100")
    created_at: int
    completed_at: int | None
    expires_at: int | None = Field(description="when the video is removed")
    prompt: str | None
    size: str | None = Field(description="as asked for; of a completed one, as made")
    seconds: str | None = Field(description="as asked for; of a completed one, as made")
    seed: int | None = Field(description="send it again for the same video")
    media_type: str | None
    error: VideoError | None
    remixed_from_video_id: None = None
    notes: list[str] = Field(description="what was ignored or chosen, and the server's warnings")


class VideoList(BaseModel):
    """A page of jobs."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """What DELETE answers."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True
