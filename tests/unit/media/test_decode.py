# SPDX-License-Identifier: Apache-2.0
"""Files <-> arrays: what goes in comes out, and what must not come in is refused."""

from __future__ import annotations

import base64
import dataclasses
import io
import struct
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.server import broken_files as files
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import RequestError
from triton_diffusers.media.decode import decode_audio, decode_image, decode_video, read_file
from triton_diffusers.media.encode import Sound, encode_audio, encode_image, encode_video

LIMITS = ServeConfig(
    model="any",
    max_input_pixels=4096,
    max_input_pixels_in_all=16_384,
    max_input_bytes=2**20,
    max_frames=12,
    max_audio_s=5,
)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (16, 24, 3), np.uint8)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: data,
        base64.b64encode,
        base64.urlsafe_b64encode,
        base64.encodebytes,
        lambda data: b"data:image/png;base64," + base64.b64encode(data),
        lambda data: b"DATA:;base64," + base64.b64encode(data),
    ],
    ids=["raw", "base64", "urlsafe", "lines", "data-url", "upper-case"],
)
def test_the_three_ways_to_send_a_file(wrap: Callable[[bytes], bytes]) -> None:
    content = files.image_file("png")
    assert read_file(wrap(content), "x", LIMITS) == content
    assert (
        read_file(
            wrap(content).decode("latin-1") if wrap(content).isascii() else content, "x", LIMITS
        )
        == content
    )


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "I;16", "LA", "CMYK"])
def test_every_kind_of_picture_becomes_rgb(mode: str) -> None:
    buffer = io.BytesIO()
    file_format = "JPEG" if mode == "CMYK" else "PNG"
    Image.new(mode, (24, 16)).save(buffer, file_format)
    image = decode_image(buffer.getvalue(), "x", LIMITS)
    assert (image.mode, image.size) == ("RGB", (24, 16))


def test_pictures_are_turned_upright() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (24, 16)).save(buffer, "JPEG", exif=exif)
    assert decode_image(buffer.getvalue(), "x", LIMITS).size == (16, 24)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_and_webp_keep_pixels(channels: int) -> None:
    pixels = np.repeat(PIXELS[..., :1], channels, axis=-1)
    data = encode_image(pixels, "png", None)
    found = np.asarray(Image.open(io.BytesIO(data))).reshape(pixels.shape)
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("file_format", ["jpeg", "webp"])
def test_quality_changes_the_size(file_format: str) -> None:
    small, large = (len(encode_image(PIXELS, file_format, q)) for q in (5, 95))
    assert small < large


@pytest.mark.parametrize("file_format", ["mp4", "gif"])
@pytest.mark.parametrize("size", [(16, 24), (15, 17)])
def test_videos_keep_their_frames(file_format: str, size: tuple[int, int]) -> None:
    frames = np.zeros((4, *size, 3), np.uint8)
    frames += np.arange(0, 200, 50, dtype=np.uint8)[:, None, None, None]
    found = decode_video(encode_video(frames, file_format, 8.0), "x", LIMITS)
    assert [(f.mode, f.size) for f in found] == [("RGB", size[::-1])] * 4
    means = [np.asarray(f).mean() for f in found]
    np.testing.assert_allclose(means, [0, 50, 100, 150], atol=6)


@pytest.mark.parametrize(("channels", "rate"), [(1, 24000), (2, 48000), (2, 15000)])
def test_a_video_holds_its_sound(channels: int, rate: int) -> None:
    times = np.arange(rate) / rate
    tone = np.stack([np.sin(times * np.pi * pitch) for pitch in (800, 1600)])[:channels] * 0.5
    frames = np.zeros((8, 16, 24, 3), np.uint8)
    file = encode_video(frames, "mp4", 8.0, Sound(tone.astype(np.float32), rate))
    assert len(decode_video(file, "x", LIMITS)) == 8
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.audio[0]
        assert (stream.channels, stream.rate) == (channels, 16000 if rate == 15000 else rate)
        assert container.duration == pytest.approx(1e6, rel=0.15)
        found = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)
    assert found.shape[1] == pytest.approx(stream.rate, rel=0.15)
    for heard, pitch in zip(found, (400, 800), strict=False):
        middle = heard[: stream.rate // 2]
        loudest = np.abs(np.fft.rfft(middle)).argmax() * stream.rate / len(middle)
        assert loudest == pytest.approx(pitch, abs=5)


@pytest.mark.parametrize("file_format", ["wav", "flac"])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_survives_16_bits(file_format: str, channels: int) -> None:
    samples = RNG.uniform(-1, 1, (channels, 500)).astype(np.float32)
    found, rate = decode_audio(encode_audio(samples, file_format, 8000), "x", LIMITS)
    assert (found.dtype, found.shape, rate) == (np.float32, (channels, 500), 8000)
    np.testing.assert_allclose(found, samples, atol=2e-4)


FORMATS = ("png", "jpeg", "webp", "gif", "bmp", "tiff")
REFUSED_PICTURES = {
    **{f"{f}-cut": lambda f=f: files.truncated(files.image_file(f)) for f in FORMATS},
    **{f"{f}-noise": lambda f=f: files.scrambled(files.image_file(f), 12) for f in FORMATS},
    "empty": lambda: b"\0",
    "bomb": files.png_bomb,
    "gif-bomb": files.gif_bomb,
    "text-bomb": files.png_text_bomb,
    "too-large": lambda: files.image_file("png", 65, 64),
    "eps": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    "svg": lambda: b"<svg/>",
}


@pytest.mark.parametrize("name", list(REFUSED_PICTURES))
def test_pictures_that_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="input 'x'"):
        decode_image(REFUSED_PICTURES[name](), "x", LIMITS)


REFUSED_VIDEOS = {
    "cut": lambda: files.truncated(files.video_file(5)),
    "noise": lambda: files.scrambled(files.video_file(5)),
    "gif-bomb": files.gif_bomb,
    "gif-that-grows": lambda: files.growing_gif(70, 70),
    "mp4-long": lambda: files.video_file(13),
    "gif-long": lambda: files.video_file(13, "gif"),
    "mp4-large": lambda: files.video_file(2, "mp4", 66, 64),
    "mp4-large-in-all": lambda: files.video_file(5, "mp4", 64, 64),
    "gif-large-in-all": lambda: files.video_file(5, "gif", 64, 64),
    "sound": lambda: files.sound_file("wav"),
    "picture": lambda: files.image_file("png"),
    "playlist": lambda: b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    "concat": lambda: b"ffconcat version 1.0\nfile /etc/passwd\n",
    "sdp": lambda: b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
}


@pytest.mark.parametrize("name", list(REFUSED_VIDEOS))
def test_videos_that_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="input 'x'"):
        decode_video(REFUSED_VIDEOS[name](), "x", LIMITS)


REFUSED_SOUNDS = {
    "cut": lambda: files.sound_file("flac")[:60],
    "half": lambda: files.truncated(files.sound_file("flac", 20_000, 8000)),
    "bomb": files.flac_bomb,
    "long": lambda: files.sound_file("wav", 800 * 6),
    "picture": lambda: files.image_file("png"),
}


@pytest.mark.parametrize("name", list(REFUSED_SOUNDS))
def test_sounds_that_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="input 'x'") as refused:
        decode_audio(REFUSED_SOUNDS[name](), "x", LIMITS)
    assert "BytesIO" not in str(refused.value)


def test_a_wav_header_that_promises_more_is_no_bomb() -> None:
    samples, _ = decode_audio(files.wav_bomb(), "x", LIMITS)
    assert samples.size <= 800


@pytest.mark.parametrize("element", ["", "hello", "data:image/png,x", "data:;base64,@", "iVBORw0"])
def test_texts_that_are_no_files(element: str) -> None:
    with pytest.raises(RequestError, match="input 'x'"):
        decode_image(read_file(element, "x", LIMITS), "x", LIMITS)


def test_the_size_of_a_file_is_limited_before_and_after_base64() -> None:
    small = dataclasses.replace(LIMITS, max_input_bytes=1000)
    for data in (bytes(3000), base64.b64encode(bytes(1100)), b"data:;base64," + b"A" * 1400):
        with pytest.raises(RequestError, match="max_input_bytes"):
            read_file(data, "x", small)


def _jpeg(**options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (50, 60, 3), np.uint8)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


JPEGS = {
    "plain": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 2},
    "progressive-restarts": {"progressive": True, "restart_marker_blocks": 2, "subsampling": 2},
}


@pytest.mark.parametrize("name", list(JPEGS))
def test_a_jpeg_that_ends_early_is_not_filled_with_grey(name: str) -> None:
    whole = _jpeg(**JPEGS[name])
    assert decode_image(read_file(whole, "x", LIMITS), "x", LIMITS).size == (60, 50)
    with pytest.raises(RequestError, match=r"'x': broken file: it ends early: .*send all of it"):
        decode_image(files.short_jpeg(whole), "x", LIMITS)


def test_a_header_that_promises_more_than_its_file_can_hold_is_refused_before_decoding() -> None:
    bomb = bytearray(_jpeg())
    start = bomb.index(b"\xff\xc0")
    bomb[start + 5 : start + 9] = struct.pack(">HH", 8000, 8000)
    with pytest.raises(RequestError, match="cannot hold its 8000 x 8000 pixels"):
        read_file(bytes(bomb), "x", ServeConfig(model="any"))


@pytest.mark.parametrize(("interlaced", "rows"), [(0, 64), (0, 63), (0, 1), (1, 64)])
def test_a_png_whose_data_end_early_is_not_filled_with_black(interlaced: int, rows: int) -> None:
    content = files.png_of_rows(rows, 64, interlaced)
    if rows == 64:
        assert decode_image(content, "x", LIMITS).size == (64, 64)
        return
    with pytest.raises(RequestError, match="'x': broken file: it ends early: pixels are missing"):
        decode_image(content, "x", LIMITS)


@pytest.mark.parametrize("kind", ["png", "gif", "webp", "avi", "mp4", "mkv", "wav", "rf64", "ogg"])
def test_containers_that_end_early_are_refused(kind: str) -> None:
    whole = files.container_file(kind)
    roomy = ServeConfig(model="any")
    assert read_file(whole, "x", roomy) == whole
    assert read_file(whole + b"\0" * 9, "x", roomy)  # what follows it does no harm
    for cut in (whole[: len(whole) // 2], whole[:-20]):
        with pytest.raises(
            RequestError, match=r"'x': broken file: it ends early: .*(missing|cut off)"
        ):
            read_file(cut, "x", roomy)
