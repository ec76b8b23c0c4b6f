# SPDX-License-Identifier: Apache-2.0
"""Writing results as files."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from triton_diffusers.client.errors import DiffusersClientError
from triton_diffusers.contract import (
    AUDIO_FIELDS,
    AUDIO_FORMATS,
    DEFAULT_FPS,
    FRAMES,
    IMAGE_FORMATS,
    IMAGES,
    OWN_OUTPUTS,
    VIDEO_FORMATS,
)
from triton_diffusers.media.decode import FileError, format_of
from triton_diffusers.media.encode import Sound, encode_audio, encode_mp4
from triton_diffusers.media.pixels import Array

SPELLINGS = {"jpg": "jpeg"}


class Outputs(Protocol):
    """What of a result is written."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Every output by name as it came."""

    @property
    def images(self) -> list[Image.Image]:
        """The pictures."""

    @property
    def frames(self) -> list[list[Image.Image]]:
        """The frames of each video."""

    @property
    def audios(self) -> Array:
        """The sounds, float32 (N,channels,samples)."""

    @property
    def sampling_rate(self) -> int | None:
        """Samples per second of the sounds."""

    @property
    def media(self) -> list[bytes]:
        """The encoded files."""

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server tells of the call."""


@contextmanager
def as_client_errors() -> Iterator[None]:
    """Raise as an error of the client what media tells of a file that cannot be read here."""
    try:
        yield
    except FileError as error:
        raise DiffusersClientError(str(error)) from None


def save(result: Outputs, path: Path, fps: float | None) -> list[Path]:
    """Write a result's outputs by the suffix of `path`; see Result.save."""
    wanted = path.suffix.lower().removeprefix(".")
    wanted = SPELLINGS.get(wanted, wanted)
    contents: list[bytes]
    if result.media and all(format_of(file) == wanted for file in result.media):
        contents = result.media
    else:
        contents = _writer(wanted, path, result)(result, wanted, fps or _fps(result))
    if not contents:
        raise DiffusersClientError(
            f"'{path.name}' does not fit this result: {result!r}. Suffixes that fit: "
            f"{_suffixes(result)}."
        )
    paths = [path] if len(contents) == 1 else _numbered(path, len(contents))
    for target, content in zip(paths, contents, strict=True):
        target.write_bytes(content)
    return paths


def _numbered(path: Path, count: int) -> list[Path]:
    return [path.with_name(f"{path.stem}-{index}{path.suffix}") for index in range(count)]


def _fps(result: Outputs) -> float:
    told = result.info.get("fps")
    return float(told) if isinstance(told, int | float) and told > 0 else DEFAULT_FPS


def _suffixes(result: Outputs) -> str:
    """List the suffixes that a result can be saved under."""
    encoded = {format_of(file) for file in result.media} - {""}
    fitting = {f".{name}" for name in encoded} | {".npz"}
    if IMAGES.name in result.arrays or encoded & set(IMAGE_FORMATS):
        fitting |= {".png", ".jpg", ".webp"}
    if FRAMES.name in result.arrays or encoded & set(VIDEO_FORMATS):
        fitting |= {".mp4", ".gif"}
    is_sound = encoded & set(AUDIO_FORMATS) or any(name in result.arrays for name in AUDIO_FIELDS)
    fitting |= {f".{name}" for name in AUDIO_FORMATS if is_sound}
    if _main_arrays(result):
        fitting |= {".npy"}
    return ", ".join(sorted(fitting))


def _writer(
    wanted: str, path: Path, result: Outputs
) -> Callable[[Outputs, str, float], list[bytes]]:
    writers: dict[str, Callable[[Outputs, str, float], list[bytes]]] = {
        "gif": _encode_gifs,
        "mp4": _encode_mp4s,
        **dict.fromkeys(AUDIO_FORMATS, _encode_sounds),
        "npy": _encode_npy,
        "npz": _encode_npz,
    }
    if wanted in writers:
        return writers[wanted]
    if f".{wanted}" in Image.registered_extensions():
        return _encode_images
    problem = f"suffix '.{wanted}' cannot be written" if wanted else f"'{path.name}' has no suffix"
    raise DiffusersClientError(f"{problem}. Suffixes that fit this result: {_suffixes(result)}.")


def _encode_images(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    pillow_format = Image.registered_extensions()[".jpg" if wanted == "jpeg" else f".{wanted}"]
    return [_encode_image(image, pillow_format) for image in result.images]


def _encode_image(image: Image.Image, pillow_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format=pillow_format, **options)
    return file.getvalue()


def _encode_gifs(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    if not result.frames:
        return _encode_images(result, wanted, fps)
    timing = {"duration": 1000 / fps, "loop": 0}
    return [
        _encode_image(video[0], "GIF", save_all=True, append_images=video[1:], **timing)
        for video in result.frames
    ]


def _encode_mp4s(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    videos = [[np.asarray(image.convert("RGB")) for image in video] for video in result.frames]
    sounds: Sequence[Sound | None] = _sounds(result)
    if len(sounds) != len(videos):
        sounds = [None] * len(videos)
    return [encode_mp4(video, fps, s) for video, s in zip(videos, sounds, strict=True)]


def _sounds(result: Outputs) -> list[Sound]:
    """Return the sounds that can stand beside a result's videos; none where one cannot."""
    rate = result.sampling_rate or 0
    sounds = [Sound(each, rate) for each in result.audios]
    return sounds if all(sound.fits_mp4 for sound in sounds) else []


def _encode_sounds(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    return [encode_audio(sound, wanted, result.sampling_rate or 0) for sound in result.audios]


def _encode_npy(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    main = _main_arrays(result)
    if not main:
        return []
    file = io.BytesIO()
    np.save(file, result.arrays[main[0]], allow_pickle=False)
    return [file.getvalue()]


def _main_arrays(result: Outputs) -> list[str]:
    own = {tensor.name for tensor in OWN_OUTPUTS}
    names = [name for name in result.arrays if name not in own]
    return [n for n in (IMAGES.name, FRAMES.name, *AUDIO_FIELDS) if n in names] or names


def _encode_npz(result: Outputs, wanted: str, fps: float) -> list[bytes]:
    file = io.BytesIO()
    plain = {
        n: a if a.dtype != np.object_ else a.astype(np.bytes_) for n, a in result.arrays.items()
    }
    np.savez(file, **plain)
    return [file.getvalue()]
