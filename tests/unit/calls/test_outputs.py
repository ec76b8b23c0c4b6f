# SPDX-License-Identifier: Apache-2.0
"""What pipelines return -> output tensors and files."""

from __future__ import annotations

import base64
import io
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from triton_diffusers.calls.outputs import OutputOptions, formats_of, to_wire, waveforms
from triton_diffusers.contract import (
    AUDIO,
    AUDIOS,
    FRAMES,
    IMAGES,
    NSFW,
    OUTPUT_FORMATS,
    SAMPLING_RATE,
    Tensor,
)
from triton_diffusers.errors import RequestError

RNG = np.random.default_rng(0)
FLOATS = RNG.uniform(0, 1, (2, 4, 6, 3)).astype(np.float32)
BYTES = np.rint(FLOATS * 255).astype(np.uint8)
PICTURES = [Image.fromarray(p) for p in BYTES]
GREY = [Image.fromarray(p[..., 0]) for p in BYTES]
SOUND = RNG.uniform(-1, 1, (2, 1, 50)).astype(np.float32)
OTHER = Tensor("embedding", "TYPE_FP32", (-1,))
TEXT = Tensor("text", "TYPE_STRING", (-1,))
OTHERS = (OTHER, TEXT, Tensor("video", "TYPE_FP32", (-1,)), Tensor("sound", "TYPE_FP32", (-1,)))
KNOWN = (IMAGES, FRAMES, AUDIOS, AUDIO, NSFW, SAMPLING_RATE)
DECLARED = {t.name: t for t in (*KNOWN, *OTHERS)}


def _wire(rate: int | None = None, options: dict[str, Any] | None = None, **result: Any) -> Any:
    notes: list[str] = []
    return to_wire(result, DECLARED, OutputOptions(**(options or {})), rate, notes), notes


@pytest.mark.parametrize(
    "value", [PICTURES, FLOATS, BYTES, list(FLOATS)], ids=["pil", "float", "uint8", "list"]
)
def test_images(value: Any) -> None:
    wire, notes = _wire(images=value)
    assert wire["images"].dtype == np.uint8
    np.testing.assert_array_equal(wire["images"], BYTES)
    assert notes == []


def test_grey_images_have_one_channel() -> None:
    np.testing.assert_array_equal(_wire(images=GREY)[0]["images"], BYTES[..., :1])


def test_images_of_different_sizes_need_files() -> None:
    mixed = [Image.new("RGB", (6, 4)), Image.new("RGB", (8, 4))]
    with pytest.raises(RequestError, match=r"different sizes \(6x4, 8x4\).*output_format png"):
        _wire(images=mixed)
    wire, _ = _wire(images=mixed, options={"file_format": "png"})
    assert [Image.open(io.BytesIO(f)).size for f in wire["media"]] == [(6, 4), (8, 4)]


@pytest.mark.parametrize(
    "value", [[PICTURES, PICTURES], np.stack([FLOATS, FLOATS])], ids=["pil", "float"]
)
def test_frames(value: Any) -> None:
    wire, _ = _wire(frames=value)
    np.testing.assert_array_equal(wire["frames"], np.stack([BYTES, BYTES]))


def test_sound() -> None:
    wire, _ = _wire(rate=800, audios=SOUND)
    np.testing.assert_array_equal(wire["audios"], SOUND)
    assert wire["sampling_rate"].tolist() == [800]
    assert waveforms(SOUND[:, 0]).shape == SOUND.shape
    assert waveforms(SOUND[0, 0]).shape == (1, 1, 50)


@pytest.mark.parametrize(
    ("value", "expected"),
    [([True, False], [True, False]), (None, None), ([None], None), (False, [False])],
)
def test_flags_of_the_safety_checker(value: Any, expected: Any) -> None:
    wire, _ = _wire(images=FLOATS, nsfw_content_detected=value)
    found = wire.get("nsfw_content_detected")
    assert (None if found is None else found.tolist()) == expected


def test_other_fields_are_float32_and_texts_bytes() -> None:
    wire, _ = _wire(embedding=np.ones((1, 3), np.float64), text=["a", "\u00e9"])
    assert wire["embedding"].dtype == np.float32
    assert wire["text"].tolist() == [b"a", b"\xc3\xa9"]


def test_what_fits_no_tensor_is_told() -> None:
    wire, notes = _wire(embedding=object())
    assert wire == {}
    assert notes == ["output 'embedding' (object) fits no tensor"]


@pytest.mark.parametrize("name", ["images", "frames", "embedding"])
def test_nan_is_told(name: str) -> None:
    value = np.full((1, 2, 4, 4, 3) if name == "frames" else (1, 4, 4, 3), np.nan, np.float32)
    _, notes = _wire(**{name: value})
    assert [n for n in notes if f"'{name}' holds NaN" in n]


MAGIC = {
    "png": b"\x89PNG",
    "jpeg": b"\xff\xd8",
    "webp": b"RIFF",
    "gif": b"GIF8",
    "mp4": b"ftyp",
    "wav": b"RIFF",
    "flac": b"fLaC",
}


@pytest.mark.parametrize("file_format", [f for f in OUTPUT_FORMATS if f != "tensor"])
@pytest.mark.parametrize("as_base64", [False, True])
def test_every_format_gives_a_file_per_output(file_format: str, as_base64: bool) -> None:
    results = {
        "images": PICTURES,
        "frames": np.stack([FLOATS[:, :4, :4], FLOATS[:, :4, :4]]),
        "audios": SOUND,
    }
    options = {"file_format": file_format, "as_base64": as_base64}
    wire, _ = _wire(rate=800, options=options, **results)
    contents = [base64.b64decode(f) if as_base64 else f for f in wire["media"]]
    assert len(contents) == 2
    assert all(MAGIC[file_format] in content[:12] for content in contents)
    assert len(set(results) - set(wire)) == 1  # the file stands for its tensor


@pytest.mark.parametrize(
    ("fields", "formats"),
    [
        (("images",), {"png", "jpeg", "webp"}),
        (("frames",), {"mp4", "gif"}),
        (("audios",), {"wav", "flac"}),
        (("embedding",), set()),
    ],
)
def test_formats_of_a_pipeline(fields: tuple[str, ...], formats: set[str]) -> None:
    assert set(formats_of(fields)) == formats | {"tensor"}


@pytest.mark.parametrize(
    ("name", "shape", "channels"),
    [("audio", (2, 2, 800), 2), ("audio", (2, 800), 1), ("audio", (2, 3, 800), None)],
)
def test_a_video_made_with_sound_is_a_file_with_both(
    name: str, shape: tuple[int, ...], channels: int | None
) -> None:
    frames = np.stack([FLOATS[:, :4, :4], FLOATS[:, :4, :4]])
    results = {"frames": frames, name: np.zeros(shape, np.float32)}
    wire, notes = _wire(rate=8000, options={"file_format": "mp4"}, **results)
    assert name in wire
    for content in wire["media"]:
        with av.open(io.BytesIO(content)) as container:
            found = [stream.channels for stream in container.streams.audio]
        assert found == ([] if channels is None else [channels])
    assert [n for n in notes if "the file has no sound: output 'audio'" in n] == notes
    assert bool(notes) == (channels is None)


def test_a_video_that_plays_at_another_rate_than_its_sound_is_told() -> None:
    results = {"frames": FLOATS[None, :, :4, :4], "audio": np.zeros((1, 2, 800), np.float32)}
    for made_for, told in ((24.0, True), (48.0, False), (None, False)):
        options = {"file_format": "mp4", "fps": 48.0, "made_for_fps": made_for}
        _, notes = _wire(rate=8000, options=options, **results)
        assert any("not in step" in note for note in notes) == told


def test_channels_of_one_videos_sound_may_stand_alone() -> None:
    results = {"video": FLOATS[None, :, :4, :4], "sound": np.zeros((2, 800), np.float32)}
    wire, notes = _wire(rate=8000, options={"file_format": "mp4"}, **results)
    with av.open(io.BytesIO(wire["media"][0])) as container:
        assert container.streams.audio[0].channels == 2
    assert notes == []


def test_sound_without_a_rate_cannot_be_a_file() -> None:
    with pytest.raises(RequestError, match="sampling rate"):
        _wire(audios=SOUND, options={"file_format": "wav"})
