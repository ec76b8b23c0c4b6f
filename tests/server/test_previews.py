# SPDX-License-Identifier: Apache-2.0
"""Previews of the demo model: over gRPC streams, /generate_stream, the client and the command."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builder import main as builder
from builder.tritonserver.server import Server
from tests.server.conftest import PREVIEWED
from tests.server.test_streams import Stream
from tests.server.wire import TIMEOUT_S, connect, infer, post
from triton_diffusers.client import AsyncDiffusersClient, DiffusersClient, InvalidRequest

INPUTS = {"prompt": "a handwritten seven", "seed": 7}
STEPS = PREVIEWED["num_inference_steps"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def server(preview_server: Server) -> Server:
    return preview_server


@pytest.fixture
def first(first_preview: dict[str, Any]) -> dict[str, Any]:
    return first_preview


@pytest.fixture
def stream(server: Server, first: Any) -> Iterator[Stream]:
    with connect(server, "grpc") as client:
        made = Stream(client)
        yield made
        client.stop_stream(cancel_requests=True)


def _picture(file: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(file))
    assert image.format == "JPEG"
    return np.asarray(image)


def _correlation(preview: np.ndarray, picture: np.ndarray) -> float:
    size = (picture.shape[1], picture.shape[0])
    scaled = np.asarray(Image.fromarray(preview).resize(size, Image.Resampling.BICUBIC))
    return float(np.corrcoef(scaled.ravel(), picture.ravel())[0, 1])


def test_the_first_call_says_why_it_had_none(first: dict[str, Any]) -> None:
    (warning,) = [w for w in first["warnings"] if "previews" in w]
    assert warning.startswith("no previews: their colours are learned from finished calls")


def test_previews_come_with_every_second_step(server: Server, stream: Stream) -> None:
    stream.send(INPUTS | {"preview_every": 2})
    *steps, last = stream.all()
    assert [s.as_numpy("progress").tolist() for s in steps] == [
        [done, STEPS] for done in range(1, STEPS + 1)
    ]
    with_one = [s for s in steps if s.as_numpy("preview") is not None]
    assert [s.as_numpy("progress")[0] for s in with_one] == [2, 4, 6, 8]
    assert last.as_numpy("preview") is None
    picture = last.as_numpy("images")[0]
    likeness = []
    for step in with_one:
        (file,) = step.as_numpy("preview")
        preview = _picture(file)
        assert preview.shape == (16, 16, 3)
        likeness.append(_correlation(preview, picture))
    assert likeness[-1] > 0.8, likeness
    assert likeness[0] < likeness[-1]
    with connect(server, "grpc") as client:
        plain = infer(client, "grpc", "plain", INPUTS)
    np.testing.assert_array_equal(last.as_numpy("images"), plain["images"])


def test_without_the_input_there_are_none(stream: Stream) -> None:
    stream.send(INPUTS)
    *steps, last = stream.all()
    assert all(len(s.get_response().outputs) == 1 for s in steps)
    assert not [w for w in json.loads(last.as_numpy("info")[0])["warnings"] if "preview" in w]


def test_one_preview_for_each_output(stream: Stream) -> None:
    stream.send(INPUTS | {"seed": [1, 2], "preview_every": STEPS, "num_images_per_prompt": 2})
    *steps, last = stream.all()
    files = steps[-1].as_numpy("preview")
    pictures = last.as_numpy("images")
    assert files.shape == (2,)
    for file, picture in zip(files, pictures, strict=True):
        assert _correlation(_picture(file), picture) > 0.75


@pytest.mark.parametrize("every", [0, -3])
def test_nonsense_is_refused(stream: Stream, every: int) -> None:
    stream.send(INPUTS | {"preview_every": every})
    result, error = stream.next()
    assert result is None
    assert f"input 'preview_every': {every}; send 1 for a preview" in error.message()


def test_generate_stream_carries_base64(server: Server, first: Any) -> None:
    body = INPUTS | {"preview_every": 4, "output_format": "png", "output_base64": True}
    url = f"http://{server.http_url}/v2/models/streams/generate_stream"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    previews = {e["progress"][0]: e["preview"] for e in events if e.get("preview")}
    assert sorted(previews) == [4, 8]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(events[-1]["media"]))))
    assert _correlation(_picture(base64.b64decode(previews[8])), picture) > 0.8


@pytest.mark.parametrize("field", ["preview_every", "extra"])
def test_an_entry_that_does_not_stream_says_so(server: Server, field: str) -> None:
    value = 2 if field == "preview_every" else json.dumps({"preview_every": 2})
    status, text = post(server, "models/plain/generate", INPUTS | {field: value})
    assert status == 400
    assert "written with --decoupled" in json.loads(text)["error"]


def test_the_client_hands_pictures_over(server: Server, first: Any) -> None:
    seen, steps = [], []
    with DiffusersClient(server.grpc_url, "streams") as client:
        result = client.generate(
            **INPUTS,
            preview_every=4,
            on_preview=lambda *given: seen.append(given),
            on_progress=lambda *given: steps.append(given),
        )
    assert [(step, total) for step, total, _ in seen] == [(4, STEPS), (8, STEPS)]
    assert steps == [(done, STEPS) for done in range(1, STEPS + 1)]
    ((preview,),) = [pictures for _, _, pictures in seen[-1:]]
    assert isinstance(preview, Image.Image)
    assert _correlation(np.asarray(preview), result.arrays["images"][0]) > 0.8
    assert "preview" not in result.arrays


def test_the_asyncio_client_does_the_same(server: Server, first: Any) -> None:
    seen: list[Any] = []

    async def work() -> None:
        async with AsyncDiffusersClient(server.grpc_url, "streams") as client:
            await client.generate(**INPUTS, progress=True, on_preview=lambda *s: seen.append(s))

    asyncio.run(work())
    assert [step for step, _, _ in seen] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_on_preview_is_quiet_where_there_are_none(server: Server, protocol: str) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    seen: list[Any] = []
    with DiffusersClient(url, "plain", protocol) as client:
        for given in ({}, {"preview_every": 2}):
            assert client.generate(
                **INPUTS, **given, progress=True, on_preview=lambda *s: seen.append(s)
            ).images
        with pytest.raises(InvalidRequest, match="written with --decoupled"):
            client.generate(**INPUTS, preview_every=2)
    assert seen == []


def test_the_command_keeps_a_preview_beside_its_output(
    server: Server, first: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", server.grpc_url, "--prompt", "a handwritten seven", "--seed", "7"]
    output = ["--output", str(tmp_path / "seven.png"), "--preview-every", "4"]
    assert builder.main(["generate", "streams", *words, *output]) == 0
    assert capsys.readouterr().out.splitlines() == ["seed 7", str(tmp_path / "seven.png")]
    assert Image.open(tmp_path / "seven-preview.jpg").size == (16, 16)
    assert builder.main(["generate", "plain", *words, *output]) == 1
    assert "model 'plain' sends no previews" in capsys.readouterr().err
