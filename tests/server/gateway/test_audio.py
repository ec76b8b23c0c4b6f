# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/generate against tiny sound models on a real server."""

from __future__ import annotations

import io
import json
import wave
from typing import Any

import httpx
import pytest

from tests.server.tiny_entries import TinyServer

RAIN = {"num_inference_steps": 2, "guidance_scale": 3.5, "seed": 7}
RATE = 800
"""Samples a second of the tiny Stable Audio."""


@pytest.fixture(scope="module")
def url(tiny_gateway: str, tiny_server: TinyServer) -> str:
    for entry in ("sounds", "music"):
        tiny_server.load(entry)
    return tiny_gateway


def generate(url: str, model: str = "sounds", **body: Any) -> httpx.Response:
    sent = {"input": "rain on a tin roof", "model": model, **RAIN, **body}
    return httpx.post(f"{url}/v1/audio/generate", json=sent, timeout=120)


@pytest.mark.parametrize(("file_format", "kind"), [("wav", "audio/wav"), ("flac", "audio/flac")])
def test_the_sound_is_the_one_that_the_model_makes_without_the_gateway(
    url: str, tiny_server: TinyServer, file_format: str, kind: str
) -> None:
    expected = tiny_server.ask(
        "sounds",
        **RAIN,
        prompt="rain on a tin roof",
        audio_end_in_s=0.75,
        output_format=file_format,
    )
    sound = generate(url, audio_length=0.75, response_format=file_format)
    assert sound.status_code == 200, sound.text
    assert sound.headers["content-type"] == kind
    assert sound.content == expected.media[0]
    assert sound.headers["x-seed"] == "7"
    assert sound.headers["x-sampling-rate"] == str(RATE)
    assert sound.headers["x-model"] == "sounds"
    assert isinstance(json.loads(sound.headers["x-notes"]), list)


def test_what_vllm_omnis_example_sends(url: str) -> None:
    sent = {"audio_length": 0.5, "audio_start": 0.25, "negative_prompt": "speech", "speed": 1.0}
    sound = generate(url, **sent, response_format="wav")
    assert sound.status_code == 200, sound.text
    with wave.open(io.BytesIO(sound.content)) as file:
        assert (file.getnframes(), file.getframerate()) == (RATE // 2, RATE)


def test_the_length_goes_to_the_input_that_the_pipeline_has(
    url: str, tiny_server: TinyServer
) -> None:
    expected = tiny_server.ask(
        "music", **RAIN, prompt="rain on a tin roof", audio_length_in_s=0.5, output_format="wav"
    )
    sound = generate(url, "music", audio_length=0.5, audio_start=0)
    assert sound.content == expected.media[0]


def test_the_seed_that_was_drawn_gives_the_same_sound(url: str) -> None:
    first = generate(url, seed=None, audio_length=0.25)
    again = generate(url, seed=int(first.headers["x-seed"]), audio_length=0.25)
    assert first.content == again.content
    assert generate(url, seed=8, audio_length=0.25).content != first.content


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"response_format": "mp3"}, "response_format", "'wav' or 'flac'"),
        ({"speed": 1.5}, "speed", "send 1"),
        ({"speed": "fast"}, "speed", "number"),
        ({"audio_length": 0}, "audio_length", "greater than 0"),
        ({"audio_length": 0.5, "audio_end_in_s": 0.75}, "audio_length", "disagree"),
        ({"model": "music", "audio_start": 1}, "audio_start", "Accepted:"),
        ({"stream": True}, "stream", "False"),
        ({"stream_format": "sse"}, "stream_format", "'audio'"),
        ({"prompt": "wind"}, None, "input and prompt"),
        ({"n": 2}, "n", "one sound"),
        ({"extra_params": {"stream_format": "sse"}}, "stream_format", "'audio'"),
        ({"extra_params": {"audio_length": "long"}}, "audio_length", "number"),
        (
            {"audio_length": 1, "extra_params": {"audio_start_in_s": "x"}},
            "audio_start_in_s",
            "number",
        ),
        ({"voice": "alloy"}, "voice", "not known"),
        ({"initial_audio_waveforms": "/etc/passwd"}, "initial_audio_waveforms", "data: URL"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    url: str, body: dict[str, Any], param: str | None, text: str
) -> None:
    refused = generate(url, **body)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert text in error["message"]


def test_a_model_that_makes_no_sound_is_refused(url: str, tiny_server: TinyServer) -> None:
    tiny_server.load("pictures")
    refused = generate(url, "pictures")
    assert refused.status_code == 400
    assert "makes image, not audio" in refused.json()["error"]["message"]
    assert generate(url, "sound").status_code == 404
