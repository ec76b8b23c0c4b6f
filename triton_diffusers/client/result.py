# SPDX-License-Identifier: Apache-2.0
"""A response: every output by name as it came, and the pictures, frames and sound in it."""

import base64 as base64_codec
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.client import saving
from triton_diffusers.client.media import image_of
from triton_diffusers.contract import (
    AUDIO_FIELDS,
    AUDIO_FORMATS,
    FRAMES,
    IMAGE_FORMATS,
    IMAGES,
    INFO,
    MEDIA_FILES,
    NSFW,
    SAMPLING_RATE,
    SEED_USED,
    VIDEO_FORMATS,
)
from triton_diffusers.media.decode import format_of, read_frames, read_image, read_sound
from triton_diffusers.media.pixels import Array


class Result:
    """What `generate` returns.

    arrays: every output by name as it came: `images` uint8 (N,H,W,C), `frames` uint8 (N,F,H,W,C),
    `audios` float32 (N,channels,samples), texts and files as object arrays of bytes. Arrays may be
    read-only; copy one to change it.
    """

    def __init__(self, arrays: Mapping[str, Array], base64: bool = False):
        self.arrays = dict(arrays)
        self._base64 = base64

    def __repr__(self) -> str:
        listed = ", ".join(f"{n}: {a.dtype} {list(a.shape)}" for n, a in self.arrays.items())
        return f"Result({listed})"

    @cached_property
    def images(self) -> list[Image.Image]:
        """The pictures as PIL images; empty when the entry makes none."""
        if IMAGES.name in self.arrays:
            return [image_of(pixels) for pixels in self.arrays[IMAGES.name]]
        return [read_image(file) for file in self._media_in(IMAGE_FORMATS)]

    @cached_property
    def frames(self) -> list[list[Image.Image]]:
        """The frames of each video as PIL images; empty when the entry makes none."""
        if FRAMES.name in self.arrays:
            return [[image_of(pixels) for pixels in video] for video in self.arrays[FRAMES.name]]
        return [read_frames(file) for file in self._media_in(VIDEO_FORMATS)]

    @cached_property
    def audios(self) -> Array:
        """The sounds, float32 (N,channels,samples); (0,0,0) when the entry makes none.

        Raises DiffusersClientError for a file that is broken.
        """
        for name in AUDIO_FIELDS:
            if name in self.arrays:
                array = self.arrays[name]
                return array if array.ndim == 3 else array.reshape(1, -1, array.shape[-1])
        with saving.as_client_errors():
            sounds = [read_sound(file)[0] for file in self._media_in(AUDIO_FORMATS)]
        return np.stack(sounds) if sounds else np.zeros((0, 0, 0), np.float32)

    @cached_property
    def sampling_rate(self) -> int | None:
        """Samples per second of the sounds; None when there are none."""
        if SAMPLING_RATE.name in self.arrays:
            return int(self.arrays[SAMPLING_RATE.name].reshape(-1)[0])
        sounds = self._media_in(AUDIO_FORMATS)
        with saving.as_client_errors():
            return read_sound(sounds[0])[1] if sounds else None

    @cached_property
    def media(self) -> list[bytes]:
        """The encoded files, where `output_format` asked for them."""
        items = self.arrays.get(MEDIA_FILES.name, np.empty(0, np.object_)).reshape(-1).tolist()
        return [base64_codec.b64decode(item) for item in items] if self._base64 else items

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds used: one for the call or one per output; send them for the same result."""
        seeds: list[int] = self.arrays.get(SEED_USED.name, np.empty(0, np.int64)).tolist()
        return seeds

    @cached_property
    def info(self) -> dict[str, Any]:
        """Model, versions, seconds per stage, steps and warnings, as the server tells them."""
        told = self.arrays.get(INFO.name)
        return {} if told is None else dict(json.loads(told.reshape(-1)[0]))

    @cached_property
    def nsfw_content_detected(self) -> list[bool] | None:
        """The safety checker's flag per picture; None where the pipeline has none."""
        flags = self.arrays.get(NSFW.name)
        return None if flags is None else flags.reshape(-1).tolist()

    def save(self, path: str | os.PathLike[str], fps: float | None = None) -> list[Path]:
        """Write the outputs by the suffix of `path`; several become `name-0.png`, `name-1.png` ...

        Pictures: every suffix that Pillow writes. Videos: .gif, .mp4 (with their sound; needs PyAV,
        unless the server encoded it). Sound: .wav (16 bit), .flac (only as encoded by the server).
        Arrays: .npy (the main output), .npz (all). What the server encoded in that format is
        written as it came. fps: how fast a video plays that is encoded here.
        Returns the paths written.
        Raises DiffusersClientError when the outputs do not fit the suffix.
        """
        return saving.save(self, Path(path), fps)

    def _media_in(self, formats: tuple[str, ...]) -> list[bytes]:
        return [file for file in self.media if format_of(file) in formats]
