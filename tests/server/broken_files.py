# SPDX-License-Identifier: Apache-2.0
"""Media files that a server must survive: small ones that are fine, broken ones, bombs."""

from __future__ import annotations

import io
import struct
import zlib

import av
import numpy as np
import soundfile

from tests.tiny.media import draw_clip, draw_picture
from triton_diffusers.media import encode as encoding


def image_file(file_format: str, width: int = 32, height: int = 32) -> bytes:
    """A picture as png, jpeg, webp, gif, bmp or tiff."""
    buffer = io.BytesIO()
    draw_picture(1, width, height).save(buffer, format=file_format.upper())
    return buffer.getvalue()


def truncated(content: bytes, part: float = 0.5) -> bytes:
    """The first half of a file."""
    return content[: int(len(content) * part)]


def short_jpeg(content: bytes) -> bytes:
    """A JPEG whose scan ends early, which its end marker hides: decoders fill in grey."""
    return content[: len(content) * 3 // 4].rstrip(b"\xff") + b"\xff\xd9"


def jpeg_bomb(side: int = 1000) -> bytes:
    """A small JPEG that says it is large."""
    content = bytearray(image_file("jpeg"))
    start = content.index(b"\xff\xc0")
    content[start + 5 : start + 9] = struct.pack(">HH", side, side)
    return bytes(content)


def scrambled(content: bytes, start: int = 40) -> bytes:
    """A file whose head is right and whose rest is noise."""
    noise = np.random.default_rng(0).bytes(len(content) - start)
    return content[:start] + noise


def png_bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A small PNG that says it is huge."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(100_000))
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def png_text_bomb(size: int = 32 * 2**20) -> bytes:
    """A picture with a compressed comment of many megabytes."""
    content = image_file("png")
    comment = b"Comment\0\0" + zlib.compress(bytes(size), 9)
    return content[:33] + _chunk(b"zTXt", comment) + content[33:]


def video_file(frames: int, file_format: str = "mp4", width: int = 16, height: int = 16) -> bytes:
    """A clip as mp4 or gif."""
    clip = np.stack([np.asarray(i) for i in draw_clip(frames, 3, width, height)])
    return encoding.encode_video(clip, file_format, 8.0)


def gif_bomb(side: int = 60_000) -> bytes:
    """A GIF of a few bytes whose canvas is huge."""
    content = bytearray(video_file(2, "gif"))
    content[6:10] = struct.pack("<HH", side, side)
    return bytes(content)


def growing_gif(width: int = 60_000, height: int = 60_000) -> bytes:
    """A small GIF whose second frame enlarges the canvas."""
    content = bytearray(video_file(3, "gif"))
    second = content.index(b"\x2c", content.index(b"\x2c") + 500)
    while content[second + 1 : second + 9] != struct.pack("<HHHH", 0, 0, 16, 16):
        second = content.index(b"\x2c", second + 1)
    content[second + 1 : second + 9] = struct.pack("<HHHH", 0, 0, width, height)
    return bytes(content)


def sound_file(file_format: str, samples: int = 800, rate: int = 800) -> bytes:
    """Noise as wav or flac."""
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (1, samples)).astype(np.float32)
    return encoding.encode_audio(noise, file_format, rate)


def wav_bomb() -> bytes:
    """A WAV file whose header promises 4 GB."""
    content = bytearray(sound_file("wav"))
    content[4:8] = content[40:44] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(content)


def flac_bomb(total: int = 2**36 - 1) -> bytes:
    """A FLAC file whose header promises up to 2**36 samples."""
    content = bytearray(sound_file("flac"))
    # STREAMINFO starts at 8; byte 13 of it holds 4 bits of the count, then 32 more
    content[21] = (content[21] & 0xF0) | (total >> 32)
    content[22:26] = struct.pack(">I", total & 0xFFFFFFFF)
    return bytes(content)


def silence(seconds: int, rate: int = 48_000) -> bytes:
    """Long silence, which FLAC makes tiny."""
    return encoding.encode_audio(np.zeros((1, seconds * rate), np.float32), "flac", rate)


def animated_webp(frames: int = 3) -> bytes:
    """A WebP file with several frames."""
    clip = draw_clip(frames, 5)
    buffer = io.BytesIO()
    clip[0].save(buffer, format="WEBP", save_all=True, append_images=clip[1:])
    return buffer.getvalue()


def png_of_rows(rows: int, side: int = 64, interlaced: int = 0) -> bytes:
    """A PNG of side x side whose data, complete in themselves, hold the first rows only.

    Interlaced: all rows of all passes for rows == side, else those of the first passes.
    """
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4)]
        passes += [(1, 0, 2, 2), (0, 1, 1, 2)]
    raw = b""
    for x, y, step_x, step_y in passes:
        line = b"\0" + bytes([7]) * 3 * -(-(side - x) // step_x)
        raw += line * -(-(side - y) // step_y)
    raw = raw[: len(raw) * rows // side]
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, interlaced)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def container_file(kind: str) -> bytes:
    """A picture, video or sound in a container that tells its length."""
    if kind in ("png", "webp"):
        return image_file(kind)
    if kind in ("gif", "mp4"):
        return video_file(3, kind)
    buffer = io.BytesIO()
    if kind in ("wav", "rf64", "ogg"):
        soundfile.write(buffer, np.zeros((8000, 1)), 8000, format=kind.upper())
        return buffer.getvalue()
    with av.open(buffer, "w", format={"mkv": "matroska"}.get(kind, kind)) as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for image in draw_clip(3, 5, 32, 32):
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return buffer.getvalue()


def picture_array(count: int = 1, channels: int = 3, side: int = 32) -> np.ndarray:
    """uint8 [count, side, side, channels]."""
    pixels = [np.asarray(draw_picture(i, side, side).convert("RGBA")) for i in range(count)]
    return np.stack(pixels)[..., :channels]


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
