# SPDX-License-Identifier: Apache-2.0
"""Image, video and audio files -> pictures and arrays: those that callers send, and our own.

The limits on what callers send hold before memory is taken: a small file may hold a huge picture.
"""

import base64
import binascii
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from triton_diffusers.errors import RequestError
from triton_diffusers.media.pixels import Array
from triton_diffusers.media.whole import is_picture_whole, why_not_whole

BASE64_LETTERS = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\r\n"
)
MAX_AUDIO_SAMPLES = 2**27
SOUND_MARKS = (b"RIFF", b"RF64", b"fLaC", b"OggS")
"""How WAV, FLAC and Ogg files start; other readers of libsndfile write to the server's log."""
PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those that Pillow decodes itself: for others it would start programs (EPS) or guess."""
VIDEO_CONTAINERS = ((4, b"ftyp", "mov"), (0, b"\x1a\x45\xdf\xa3", "matroska"), (8, b"AVI ", "avi"))
"""(offset, mark, demuxer). FFmpeg's own guess would include playlists, which name other files."""
SIGNATURES: tuple[tuple[str, int, bytes], ...] = (
    ("png", 0, b"\x89PNG"),
    ("jpeg", 0, b"\xff\xd8\xff"),
    ("webp", 8, b"WEBP"),
    ("gif", 0, b"GIF8"),
    ("mp4", 4, b"ftyp"),
    ("wav", 8, b"WAVE"),
    ("flac", 0, b"fLaC"),
)
"""(format, offset, the bytes that a file of it has there)"""


class MediaLimits(Protocol):
    """What a caller may send: the options of an entry have these names."""

    @property
    def max_input_pixels(self) -> int:
        """Of one picture or frame."""

    @property
    def max_input_pixels_in_all(self) -> int:
        """Of all pictures or frames of an input."""

    @property
    def max_input_bytes(self) -> int:
        """Of one file."""

    @property
    def max_frames(self) -> int:
        """Of one video."""

    @property
    def max_audio_s(self) -> float:
        """Of one sound."""


class FileError(Exception):
    """A file that the server made cannot be read."""


def read_file(element: Any, name: str, limits: MediaLimits) -> bytes:
    """Return the content of one element of a `_bytes` input: raw, base64 or a data: URL.

    Raises RequestError for text that is none of these and for content over the limit.
    """
    data = element if isinstance(element, bytes) else str(element).encode()
    if len(data) > limits.max_input_bytes * 4 // 3 + 1024:
        raise _too_large(name, len(data), limits)
    if data[:5].lower() == b"data:":
        header, comma, data = data.partition(b",")
        if not comma or not header.endswith(b";base64"):
            raise RequestError(f"input '{name}': a data: URL must be data:TYPE;base64,CONTENT")
        data = _from_base64(data, name)
    elif data and not frozenset(data[:256]) - BASE64_LETTERS:
        data = _from_base64(data, name)
    if not data:
        raise RequestError(f"input '{name}': the file is empty; send the content of a file")
    if len(data) > limits.max_input_bytes:
        raise _too_large(name, len(data), limits)
    if reason := why_not_whole(data):
        raise _ends_early(reason, name)
    return data


def decode_image(data: bytes, name: str, limits: MediaLimits, mode: str = "RGB") -> Image.Image:
    """Decode one image file to RGB or RGBA, turned upright, as diffusers' `load_image` does.

    Raises RequestError for a broken, truncated or too large image; the size is checked before
    the pixels are decoded.
    """
    try:
        with _pillow_limit(limits):
            image = Image.open(io.BytesIO(data), formats=PICTURE_FORMATS)
            _check_pixels(image.size, name, limits)
            image.load()
            if not is_picture_whole(data, image):
                raise _ends_early("pixels are missing", name)
            return ImageOps.exif_transpose(image).convert(mode)
    except RequestError:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels(name, limits) from None
    except UnidentifiedImageError:
        raise RequestError(
            f"input '{name}': {len(data)} bytes that are no image; send the content of a PNG, JPEG "
            "or WebP file, its base64, or a data: URL"
        ) from None
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        raise RequestError(f"input '{name}': broken image file ({error}); send it again") from None


def decode_video(data: bytes, name: str, limits: MediaLimits) -> list[Image.Image]:
    """Decode one MP4 or GIF file to RGB frames. Raises RequestError."""
    try:
        frames = _gif_frames(data, name, limits) if data[:3] == b"GIF" else None
        frames = frames or _av_frames(data, name, limits)
    except RequestError:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels(name, limits) from None
    except Exception as error:
        raise RequestError(
            f"input '{name}': no readable video ({error}); send the content of an MP4 or GIF file, "
            "its base64, or a data: URL"
        ) from None
    if not frames:
        raise RequestError(f"input '{name}': the video holds no frame")
    return frames


def decode_audio(data: bytes, name: str, limits: MediaLimits) -> tuple[Array, int]:
    """Decode one WAV or FLAC file: float32 [channels, samples] in -1..1, and its sampling rate.

    Raises RequestError; the length is checked before memory is taken.
    """
    import soundfile

    try:
        if not data.startswith(SOUND_MARKS):
            raise RuntimeError("no sound file")
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_length(file.frames, file.channels, file.samplerate, name, limits)
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < file.frames:
                raise RuntimeError(f"it ends after {len(samples)} of {file.frames} samples")
            return np.ascontiguousarray(samples.T), int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise RequestError(
            f"input '{name}': no readable sound ({_reason(error)}); send the content of a WAV or "
            "FLAC file, its base64, or a data: URL"
        ) from None


def _from_base64(data: bytes, name: str) -> bytes:
    compact = b"".join(data.split())
    try:
        return base64.b64decode(
            compact, altchars=b"-_" if b"-" in compact or b"_" in compact else None, validate=True
        )
    except binascii.Error as error:
        raise RequestError(
            f"input '{name}': neither file content nor valid base64 ({error})"
        ) from None


@contextmanager
def _pillow_limit(limits: MediaLimits) -> Iterator[None]:
    """Let Pillow stop at the entry's limit, also where a later frame enlarges the canvas."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = (
        limits.max_input_pixels + 1
    ) // 2  # it warns there and stops at twice that
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _ends_early(reason: str, name: str) -> RequestError:
    return RequestError(f"input '{name}': broken file: it ends early: {reason}; send all of it")


def _too_many_pixels(name: str, limits: MediaLimits) -> RequestError:
    return RequestError(
        f"input '{name}': more than {limits.max_input_pixels} pixels (max_input_pixels of the "
        "entry); send a smaller picture"
    )


def _check_pixels(size: tuple[int, int], name: str, limits: MediaLimits) -> None:
    if size[0] * size[1] > limits.max_input_pixels:
        raise RequestError(
            f"input '{name}': {size[0]} x {size[1]} pixels; at most {limits.max_input_pixels} "
            "pixels are accepted (max_input_pixels of the entry); send a smaller picture"
        )


def _too_large(name: str, size: int, limits: MediaLimits) -> RequestError:
    return RequestError(
        f"input '{name}': {size} bytes; at most {limits.max_input_bytes} bytes are accepted "
        "(max_input_bytes of the entry); send a smaller file"
    )


def check_pixels_in_all(pixels: int, name: str, limits: MediaLimits) -> None:
    """Raise RequestError when the pictures or frames of one input are too many for their size."""
    if pixels > limits.max_input_pixels_in_all:
        raise RequestError(
            f"input '{name}': more than {limits.max_input_pixels_in_all} pixels in all "
            "(max_input_pixels_in_all of the entry); send fewer or smaller pictures"
        )


def check_frames(count: int, name: str, limits: MediaLimits) -> None:
    """Raise RequestError when a video has too many frames."""
    if count > limits.max_frames:
        raise RequestError(
            f"input '{name}': more than {limits.max_frames} frames (max_frames of the entry); "
            "send a shorter video"
        )


def _reason(error: Exception) -> str:
    """Return what soundfile says, without the Python object that it names first."""
    return str(error).rpartition(">: ")[2]


def _check_length(frames: int, channels: int, rate: int, name: str, limits: MediaLimits) -> None:
    if frames > rate * limits.max_audio_s or frames * channels > MAX_AUDIO_SAMPLES:
        raise RequestError(
            f"input '{name}': {frames} samples, {frames / rate:.0f} s; at most "
            f"{limits.max_audio_s:g} s are accepted (max_audio_s of the entry); send a shorter one"
        )


def _gif_frames(data: bytes, name: str, limits: MediaLimits) -> list[Image.Image]:
    frames: list[Image.Image] = []
    with _pillow_limit(limits), Image.open(io.BytesIO(data), formats=("GIF",)) as image:
        _check_pixels(image.size, name, limits)
        for frame in ImageSequence.Iterator(image):
            _check_frame(frame.size, len(frames) + 1, name, limits)
            frames.append(frame.convert("RGB"))
    return frames


def _av_frames(data: bytes, name: str, limits: MediaLimits) -> list[Image.Image]:
    import av

    frames: list[Image.Image] = []
    with av.open(io.BytesIO(data), format=_container(data)) as container:
        if not container.streams.video:
            raise RequestError(f"input '{name}': the file holds no video stream")
        stream = container.streams.video[0]
        _check_pixels((stream.width, stream.height), name, limits)
        for frame in container.decode(stream):
            _check_frame((frame.width, frame.height), len(frames) + 1, name, limits)
            frames.append(frame.to_image())
    return frames


def _container(data: bytes) -> str:
    for offset, mark, demuxer in VIDEO_CONTAINERS:
        if data[offset : offset + len(mark)] == mark:
            return demuxer
    raise ValueError("no video file")


def _check_frame(size: tuple[int, int], count: int, name: str, limits: MediaLimits) -> None:
    _check_pixels(size, name, limits)
    check_pixels_in_all(size[0] * size[1] * count, name, limits)
    check_frames(count, name, limits)


def format_of(file: bytes) -> str:
    """Name a file's format by its first bytes; "" when it is none that the server writes."""
    for name, offset, signature in SIGNATURES:
        if file[offset : offset + len(signature)] == signature:
            return name
    return ""


def read_image(file: bytes) -> Image.Image:
    """Decode a picture."""
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


def read_frames(file: bytes) -> list[Image.Image]:
    """Decode a GIF with Pillow, an MP4 with PyAV."""
    if format_of(file) == "mp4":
        import av

        with av.open(io.BytesIO(file)) as container:
            return [frame.to_image() for frame in container.decode(video=0)]
    animation = Image.open(io.BytesIO(file))
    frames = []
    for index in range(getattr(animation, "n_frames", 1)):
        animation.seek(index)
        frames.append(animation.convert("RGB"))
    return frames


def read_sound(file: bytes) -> tuple[Array, int]:
    """Decode a WAV or FLAC file: float32 (channels, samples), and samples per second.

    Raises FileError for one that is broken.
    """
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(file), dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise FileError(f"the sound cannot be read: {_reason(error)}") from None
    return np.ascontiguousarray(samples.T), int(rate)
