# SPDX-License-Identifier: Apache-2.0
"""Arrays -> image, video and audio files for the caller."""

import io
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.arrays import Array
from triton_diffusers.errors import RequestError


def encode_image(pixels: Array, file_format: str, quality: int | None) -> bytes:
    """Encode uint8 [H, W, C] as png, jpeg or webp; quality 1-100 for the last two."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if file_format == "jpeg" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    options: dict[str, Any] = {}
    if file_format == "png":
        # a third of the time of the default for about 10 % more bytes
        options["compress_level"] = 1
    elif quality is not None:
        options["quality"] = quality
    buffer = io.BytesIO()
    try:
        image.save(buffer, format=file_format.upper(), **options)
    except (OSError, ValueError) as error:  # a format has its largest size
        raise RequestError(
            f"{image.width} x {image.height} pixels do not fit into {file_format} ({error}); send "
            "output_format png"
        ) from None
    return buffer.getvalue()


def encode_video(frames: Array, file_format: str, fps: float) -> bytes:
    """Encode uint8 [F, H, W, 3] as mp4 (H.264) or gif."""
    if file_format == "gif":
        return _encode_gif(frames, fps)
    from fractions import Fraction

    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        odd = stream.height % 2 or stream.width % 2
        stream.pix_fmt = "yuv444p" if odd else "yuv420p"  # 4:2:0 needs even sides
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(_rgb(pixels), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return buffer.getvalue()


def encode_audio(samples: Array, file_format: str, sampling_rate: int) -> bytes:
    """Encode float32 [channels, samples] as wav or flac (16 bit)."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples.T, sampling_rate, format=file_format.upper(), subtype="PCM_16")
    return buffer.getvalue()


def _rgb(pixels: Array) -> Array:
    rgb = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels[..., :3]
    return np.ascontiguousarray(rgb)


def _encode_gif(frames: Array, fps: float) -> bytes:
    images = [Image.fromarray(_rgb(pixels)) for pixels in frames]
    buffer = io.BytesIO()
    images[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(10, round(1000 / fps)),  # the format counts in hundredths of a second
        loop=0,
    )
    return buffer.getvalue()
