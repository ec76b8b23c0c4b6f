# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions, as the openai package and vLLM-Omni's example clients send it."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import httpx
import litellm
import numpy as np
import openai
import pytest

from builder.tritonserver.server import Server
from tests.server.gateway.pictures import TIMEOUT_S, error_in, file_of, pixels_of, url_of
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_picture
from triton_diffusers.client import DiffusersClient

PROMPT = "a handwritten seven"
SEVEN = {"seed": 7, "num_inference_steps": 2}
PICTURE = draw_picture(1, 48)


def post(url: str, content: Any = PROMPT, **body: Any) -> httpx.Response:
    messages = body.pop("messages", [{"role": "user", "content": content}])
    url = f"{url}/v1/chat/completions"
    return httpx.post(url, json={"messages": messages} | body, timeout=TIMEOUT_S)


def pictures_in(answer: dict[str, Any]) -> list[list[np.ndarray]]:
    """The pictures of each choice."""
    return [
        [pixels_of(part["image_url"]["url"]) for part in choice["message"]["images"]]
        for choice in answer["choices"]
    ]


@pytest.fixture(scope="module")
def seven(demo_server: Server) -> np.ndarray:
    with DiffusersClient(demo_server.grpc_url, model="demo") as client:
        pixels: np.ndarray = client.generate(prompt=PROMPT, **SEVEN).arrays["images"][0]
    return pixels


@pytest.mark.parametrize(
    "body",
    [
        SEVEN,
        {"extra_body": SEVEN | {"num_outputs_per_prompt": 1}},
        {"content": [{"type": "text", "text": PROMPT}], **SEVEN},
        {"content": [{"text": PROMPT}], **SEVEN},
    ],
    ids=["top", "extra_body", "parts", "simple parts"],
)
def test_the_picture_is_the_one_that_the_model_makes_without_the_gateway(
    gateway: str, seven: np.ndarray, body: dict[str, Any]
) -> None:
    answer = post(gateway, **body).json()
    ((picture,),) = pictures_in(answer)
    assert np.array_equal(picture, seven)
    assert answer["seed"] == 7
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_several_are_parts_of_one_choice_or_choices_where_n_asks_for_choices(gateway: str) -> None:
    parts = pictures_in(post(gateway, extra_body=SEVEN | {"num_outputs_per_prompt": 2}).json())
    choices = pictures_in(post(gateway, n=2, **SEVEN).json())
    assert [len(choice) for choice in parts] == [2]
    assert [len(choice) for choice in choices] == [1, 1]
    assert np.array_equal(parts[0], [choice[0] for choice in choices])


@pytest.mark.parametrize(
    ("sent", "form"),
    [
        (SEVEN, "images"),
        ({"extra_body": SEVEN}, "list"),
        ({"extra_body": SEVEN, "chat_content": "images"}, "images"),
        (SEVEN | {"chat_content": "list"}, "list"),
        (SEVEN | {"chat_content": "markdown", "n": 2}, "markdown"),
    ],
)
def test_content_is_a_text_or_a_list_and_images_are_always_there(
    gateway: str, sent: dict[str, Any], form: str
) -> None:
    for choice in post(gateway, **sent).json()["choices"]:
        message = choice["message"]
        (image,) = message["images"]
        assert image.pop("index") == 0
        url = image["image_url"]["url"]
        wanted = {"images": "", "list": [image], "markdown": f"![picture]({url})"}
        assert message["content"] == wanted[form]


def test_litellm_completes_and_streams(gateway: str, seven: np.ndarray) -> None:
    asked: dict[str, Any] = {
        "model": "openai/demo",
        "api_base": f"{gateway}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": PROMPT}],
        "timeout": TIMEOUT_S,
        "extra_body": SEVEN,
    }
    (image,) = litellm.completion(**asked).choices[0].message.images
    assert np.array_equal(pixels_of(image["image_url"]["url"]), seven)
    deltas = [chunk.choices[0].delta for chunk in litellm.completion(**asked, stream=True)]
    (image,) = next(delta.images for delta in deltas if getattr(delta, "images", None))
    assert np.array_equal(pixels_of(image["image_url"]["url"]), seven)


def test_size_as_text_or_as_height_and_width(gateway: str) -> None:
    by_size = post(gateway, extra_body=SEVEN | {"size": "48x64"}).json()
    by_sides = post(gateway, extra_body=SEVEN | {"width": 48, "height": 64}).json()
    assert pictures_in(by_size)[0][0].shape == (64, 48, 3)
    assert np.array_equal(pictures_in(by_size), pictures_in(by_sides))
    assert by_size["size"] == "48x64"


def test_pictures_in_the_message_are_the_models_inputs(
    tiny_server: TinyServer, tiny_gateway: str
) -> None:
    asked = {"strength": 0.5, "num_inference_steps": 4, "seed": 7}
    expected = tiny_server.ask("repaints", prompt="a red car", image=PICTURE, **asked)
    text = {"type": "text", "text": "a red car"}
    part = {"type": "image_url", "image_url": {"url": url_of(PICTURE)}}
    simple = {"image": base64.b64encode(file_of(PICTURE)).decode()}
    for content in ([text, part], [part, text], [{"text": "a red car"}, simple]):
        answer = post(tiny_gateway, content, model="repaints", extra_body=asked).json()
        assert np.array_equal(pictures_in(answer)[0], expected.arrays["images"])


def test_the_openai_client_reads_answers_and_streams(gateway: str, seven: np.ndarray) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": PROMPT}],
        "modalities": ["text"],
        "temperature": 0.3,
        "max_tokens": 100,
        "prompt_cache_key": "a",
        "moderation": {"model": "a"},
        "web_search_options": {},
        "extra_body": SEVEN,
    }
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        assert whole.choices[0].message.content == ""
        (part,) = whole.choices[0].message.images
        assert np.array_equal(pixels_of(part["image_url"]["url"]), seven)
        chunks = list(client.chat.completions.create(**asked, stream=True))
        with pytest.raises(openai.BadRequestError, match="Did you mean 'guidance_scale'"):
            client.chat.completions.create(**asked | {"extra_body": {"guidence_scale": 3}})
    assert chunks[0].choices[0].delta.content == ""
    (part,) = chunks[0].choices[0].delta.images
    assert np.array_equal(pixels_of(part["image_url"]["url"]), seven)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "stop"]
    assert chunks[-1].model_extra["seed"] == 7
    noted = {note.split(" ")[0] for note in whole.model_extra["notes"]}
    assert noted >= {"modalities", "temperature", "max_tokens"}


def test_a_stream_ends_as_openais_do(gateway: str) -> None:
    response = post(gateway, stream=True, **SEVEN)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    lines = [line for line in response.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_the_last_message_of_the_user_counts_and_the_others_are_noted(
    gateway: str, seven: np.ndarray
) -> None:
    messages = [
        {"role": "system", "content": "You draw."},
        {"role": "user", "content": "a handwritten eight"},
        {"role": "assistant", "content": [{"type": "text", "text": "here"}]},
        {"role": "user", "content": PROMPT},
    ]
    answer = post(gateway, messages=messages, **SEVEN).json()
    assert np.array_equal(pictures_in(answer)[0][0], seven)
    assert "messages: 3 left out: the model sees the user's last one only" in answer["notes"]


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages", "role 'user'"),
        (
            {"content": [{"type": "input_audio", "input_audio": {}}]},
            None,
            "send a text, or a list of",
        ),
        ({"content": [{"type": "image_url", "image_url": "data:"}]}, None, '{"url": "data:'),
        ({"content": 5}, None, "send a text"),
        ({"content": []}, "messages", "no text"),
        ({"content": ""}, "messages", "no text"),
        ({"num_outputs_per_prompt": 2, "n": 3}, "n", "disagree"),
        ({"prompt": "an eight"}, "prompt", "sent twice"),
        ({"partial_images": 2}, "partial_images", "no effect"),
        ({"content": [{"type": "text", "text": "x"}, {"image": "/etc/passwd"}]}, "image", ""),
    ],
)
def test_what_a_chat_cannot_be_is_refused(
    gateway: str, body: dict[str, Any], param: str | None, text: str
) -> None:
    error = error_in(post(gateway, **SEVEN | body))
    assert param is None or error["param"] == param
    assert text in error["message"]


@pytest.mark.parametrize("wrong", [{"messages": [5] * 500_000}, {"content": [{}, 5] * 100_000}])
def test_many_wrong_items_are_refused_at_the_first(gateway: str, wrong: dict[str, Any]) -> None:
    started = time.monotonic()
    assert error_in(post(gateway, **wrong))["param"].startswith("messages.0")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    ("entry", "endpoint"), [("wan", "POST /v1/videos"), ("sounds", "POST /v1/audio/generate")]
)
def test_models_that_make_no_pictures_say_where_to_ask(
    tiny_server: TinyServer, tiny_gateway: str, entry: str, endpoint: str
) -> None:
    tiny_server.load(entry)
    error = error_in(post(tiny_gateway, model=entry))
    assert error["param"] == "model"
    assert endpoint in error["message"]
