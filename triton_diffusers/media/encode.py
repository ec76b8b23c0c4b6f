# SPDX-License-Identifier: Apache-2.0
"""Arrays -> image, video and audio files for the caller."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.errors import RequestError
from triton_diffusers.media.pixels import Array


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


@dataclass(frozen=True)
class Sound:
    """float32 [channels, samples] from -1.0 to 1.0, and how many samples make a second."""

    samples: Array
    rate: int

    @property
    def fits_mp4(self) -> bool:
        """Whether a video's file can hold it."""
        return len(self.samples) in LAYOUTS and self.samples.shape[1] > 0 and self.rate > 0


PIXEL_FORMAT = "yuv420p"
"""4:2:0, the only one that browsers and phones play."""
COLOURS = {"color_range": 1, "color_primaries": 1, "color_trc": 1, "colorspace": 1}
"""Limited range and BT.709, as FFmpeg numbers them."""
LAYOUTS = {1: "mono", 2: "stereo"}
"""Channels -> what FFmpeg calls them."""


def encode_video(frames: Array, file_format: str, fps: float, sound: Sound | None = None) -> bytes:
    """Encode uint8 [F, H, W, C] as mp4 (H.264, the sound as AAC) or gif, which holds no sound."""
    if file_format == "gif":
        return _encode_gif(frames, fps)
    return encode_mp4(frames, fps, sound)


def mp4_size(width: int, height: int) -> tuple[int, int]:
    """Return width and height of the MP4 of frames of a size: 4:2:0 has even sides."""
    return width + width % 2, height + height % 2


def encode_mp4(frames: Sequence[Array] | Array, fps: float, sound: Sound | None = None) -> bytes:
    """Encode uint8 [H, W, C] frames as H.264 that every player knows, the sound beside them as AAC.

    4:2:0, where an odd side's last row or column is shown twice; BT.709 of limited range, and said
    so; the index first, so that it plays while it is fetched.
    """
    from fractions import Fraction

    import av

    buffer = io.BytesIO()
    with av.open(
        buffer,
        "w",
        format="mp4",
        options={"movflags": "+faststart"},
        # the file is read once more to make room for the index at its start
        io_open=lambda *_: io.BytesIO(buffer.getvalue()),
    ) as container:
        video = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        height, width = frames[0].shape[:2]
        video.width, video.height = mp4_size(width, height)
        video.pix_fmt = PIXEL_FORMAT
        for name, value in COLOURS.items():
            setattr(video.codec_context, name, value)
        # all streams are added before the first packet is written
        packets = _encode_sound(container, sound) if sound is not None else []
        for pixels in frames:
            packets += video.encode(_to_frame(pixels))
        packets += video.encode()
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return buffer.getvalue()


def _to_frame(pixels: Array) -> Any:
    """Return one frame of PIXEL_FORMAT in COLOURS."""
    import av

    height, width = pixels.shape[:2]
    pixels = _rgb(pixels)
    if mp4_size(width, height) != (width, height):
        pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    return frame.reformat(
        format=PIXEL_FORMAT,
        dst_colorspace=COLOURS["colorspace"],
        dst_color_range=COLOURS["color_range"],
    )


def _encode_sound(container: Any, sound: Sound) -> list[Any]:
    import av

    layout = LAYOUTS[len(sound.samples)]
    rates = av.Codec("aac", "w").audio_rates or [sound.rate]
    # what AAC has no rate for is resampled to the next higher one
    rate = min((r for r in rates if r >= sound.rate), default=max(rates))
    stream = container.add_stream("aac", rate=rate, layout=layout)
    samples = np.clip(np.nan_to_num(sound.samples), -1.0, 1.0)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", layout)
    frame.sample_rate, frame.pts = sound.rate, 0
    return [*stream.encode(frame), *stream.encode()]


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
