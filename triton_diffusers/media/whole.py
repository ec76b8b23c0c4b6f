# SPDX-License-Identifier: Apache-2.0
"""Whether a media file ends before what its own headers promise.

Decoders take such files without a word and fill in what is missing: grey, black, silence, fewer
frames. Each format tells how long it is; JPEG and PNG, which only tell how large the picture is,
are looked at with the decoded picture.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageChops

STREAMED_SIZE = 0x7FFF0000
"""Writers that cannot go back put a size of at least this into a WAV file's header."""
PNG_HEAD, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND"
SEGMENT = b"\x18\x53\x80\x67"
"""Of Matroska and WebM: what holds all but the first header."""
JPEG_SCANS, JPEG_NO_LENGTH = (0xC0, 0xC1, 0xC2), (0x01, *range(0xD0, 0xD9))
"""Huffman coded: the sequential ones, the progressive one; markers without a length."""
BLOCK = 8
MOST_OF_PNG = 1 << 20


def why_not_whole(data: bytes) -> str | None:
    """Return in which way a file ends early by its containers' own sizes, or None."""
    for offset, mark, look in _LOOKS:
        if data[offset : offset + len(mark)] == mark:
            try:
                return look(data)
            except (IndexError, struct.error):
                return "its last bytes are missing"
    return None


def is_picture_whole(data: bytes, image: Image.Image) -> bool:
    """Tell whether the file of a decoded picture had all of its pixels."""
    if image.format in ("JPEG", "MPO"):
        return _jpeg_scans_are_there(data, image)
    return image.format != "PNG" or not _may_be_filled(image) or _png_pixels_are_there(data)


def _may_be_filled(image: Image.Image) -> bool:
    """Tell whether a PNG's last row is zero, as one that is missing is; interlaced: any row."""
    width, height = image.size
    return bool(image.info.get("interlace")) or not any(
        image.crop((0, height - 1, width, height)).tobytes()
    )


def _riff(data: bytes) -> str | None:
    (size,) = struct.unpack_from("<I", data, 4)
    if data[8:12] == b"WAVE":
        return _wave(data)
    missing = size + 8 - len(data)
    return f"its last {missing} bytes are missing" if missing > 1 else None


def _wave(data: bytes) -> str | None:
    offset, large = 12, None
    while offset + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, offset)
        if name == b"ds64":
            (large,) = struct.unpack_from("<Q", data, offset + 16)
        if name == b"data":
            size = large if large is not None and size == 0xFFFFFFFF else size
            is_streamed = large is None and size >= STREAMED_SIZE
            missing = offset + 8 + size - len(data)
            return (
                f"its last {missing} bytes are missing" if missing > 0 and not is_streamed else None
            )
        offset += 8 + size + size % 2
    return "it holds no samples"


def _ogg(data: bytes) -> str | None:
    offset = kind = 0
    while data[offset : offset + 4] == b"OggS":
        kind, segments = data[offset + 5], data[offset + 26]
        table = data[offset + 27 : offset + 27 + segments]
        offset += 27 + segments + sum(table)
        if len(table) < segments or offset > len(data):
            return "its last page is cut off"
    return None if kind & 4 else "its last page is missing"


def _boxes(data: bytes) -> str | None:
    """Of MP4, MOV, AVIF and HEIF."""
    offset, names = 0, set()
    while offset + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, offset)
        names.add(name)
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, offset + 8)
        if size == 0:  # to the end of the file
            break
        if size < 8:
            return None  # no box: whoever decodes it tells
        missing = offset + size - len(data)
        if missing > 0:
            return f"the last {missing} bytes of its box '{name.decode('latin-1')}' are missing"
        offset += size
    return None if names & {b"moov", b"meta"} else "its index (the box 'moov') is missing"


def _matroska(data: bytes) -> str | None:
    offset, name = 0, b""
    while offset < len(data) and name != SEGMENT:
        name = data[offset : offset + len(SEGMENT)]
        offset += _vint_length(data[offset])
        length = _vint_length(data[offset])
        size = int.from_bytes(data[offset : offset + length]) & ((1 << 7 * length) - 1)
        if size == (1 << 7 * length) - 1:  # unknown: written while it was recorded
            return None
        offset += length + size
    return f"its last {offset - len(data)} bytes are missing" if offset > len(data) else None


def _vint_length(first: int) -> int:
    return 9 - first.bit_length() if first else 8


def _gif(data: bytes) -> str | None:
    offset = 13 + _colours(data[10])
    while data[offset] != 0x3B:
        if data[offset] == 0x2C:
            offset += 10 + _colours(data[offset + 9]) + 1
        elif data[offset] == 0x21:
            offset += 2
        else:
            return None  # no block: whoever decodes it tells
        while data[offset]:
            offset += data[offset] + 1
        offset += 1
    return None


def _colours(flags: int) -> int:
    return 3 * (2 << (flags & 7)) if flags & 0x80 else 0


def _png(data: bytes) -> str | None:
    names = [name for name, start, size in _png_chunks(data) if start + size <= len(data)]
    return None if PNG_END in names else "its last chunk is missing"


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    offset, name = len(PNG_HEAD), b""
    while offset + 8 <= len(data) and name != PNG_END:
        size, name = struct.unpack_from(">I4s", data, offset)
        yield name, offset + 8, size
        offset += size + 12


def _png_pixels_are_there(data: bytes) -> bool:
    """Tell whether a PNG's data are as long as its header promises."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1)
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)]
        passes += [(0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    promised = 0
    for x, y, step_x, step_y in passes:
        columns, rows = -(-(width - x) // step_x), -(-(height - y) // step_y)
        if columns > 0 and rows > 0:
            promised += rows * (1 + (columns * bits + 7) // 8)
    reader, found = zlib.decompressobj(), 0
    for name, start, size in _png_chunks(data):
        rest = data[start : start + size] if name == b"IDAT" else b""
        while rest:
            found += len(reader.decompress(rest, MOST_OF_PNG))
            rest = reader.unconsumed_tail
    return found + len(reader.flush()) >= promised


def _jpeg(data: bytes) -> str | None:
    """Find a picture that is larger than its file can tell: a block takes at least one bit."""
    for kind, start in _jpeg_segments(data):
        if kind in JPEG_SCANS:
            height, width = struct.unpack_from(">HH", data, start + 3)
            blocks = -(-height // BLOCK) * -(-width // BLOCK)
            bits = 8 * (len(data) - start)
            too_few = f"{len(data)} bytes cannot hold its {width} x {height} pixels"
            return too_few if bits < blocks else None
    return None


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker with the offset of its length; scans are jumped over."""
    offset = 2
    while offset + 4 <= len(data):
        offset = data.find(b"\xff", offset)
        if offset < 0 or offset + 4 > len(data):
            return
        kind = data[offset + 1]
        if kind == 0xFF:  # filling
            offset += 1
        elif kind == 0 or kind in JPEG_NO_LENGTH:  # inside a scan
            offset += 2
        elif kind == 0xD9:
            return
        else:
            yield kind, offset + 2
            offset += 2 + struct.unpack_from(">H", data, offset + 2)[0]


def _jpeg_scans_are_there(data: bytes, image: Image.Image) -> bool:
    """Tell whether all scans of a JPEG are there, with all of their data."""
    segments = list(_jpeg_segments(data))
    frame = next((start for kind, start in segments if kind in JPEG_SCANS), None)
    if frame is None:
        return True  # arithmetic coding may leave out what is zero
    sampling = {data[frame + i]: data[frame + i + 1] for i in range(8, 8 + 3 * data[frame + 7], 3)}
    height, width = struct.unpack_from(">HH", data, frame + 3)
    missing = {(part, band) for part in sampling for band in range(BLOCK * BLOCK)}
    interval, ends = 0, []
    for kind, start in segments:
        if kind == 0xDD:
            (interval,) = struct.unpack_from(">H", data, start + 2)
        if kind == 0xDA:
            count = data[start + 2]
            parts = [data[start + 3 + 2 * i] for i in range(count)]
            first, last, bits = data[start + 3 + 2 * count : start + 6 + 2 * count]
            if bits & 15 == 0:  # no finer bits are to come
                missing -= {(part, band) for part in parts for band in range(first, last + 1)}
            ends.append(_end_of_scan(data, start))
            units = _units(width, height, sampling, parts)
            if interval and _restarts(data, start, ends[-1]) < (units - 1) // interval:
                return False
    return not missing and _is_same_with_noise(data, ends, image)


def _units(width: int, height: int, sampling: dict[int, int], parts: list[int]) -> int:
    """Return how many units a scan has: those of all its parts, or the blocks of the only one."""
    across = max(hv >> 4 for hv in sampling.values()) * BLOCK
    down = max(hv & 15 for hv in sampling.values()) * BLOCK
    if len(parts) == 1:
        hv = sampling[parts[0]]
        width, height = width * (hv >> 4), height * (hv & 15)
    return -(-width // across) * -(-height // down)


def _restarts(data: bytes, start: int, end: int) -> int:
    return sum(data.count(bytes((0xFF, 0xD0 + number)), start, end) for number in range(8))


def _is_same_with_noise(data: bytes, ends: list[int], image: Image.Image) -> bool:
    """Decode a JPEG with noise at the end of each scan, which only a scan that is short shows."""
    noise = np.random.default_rng(0).integers(1, 255, 64, np.uint8).tobytes()
    starts = [0, *ends]
    parts = [data[start:end] + noise for start, end in zip(starts, ends, strict=False)]
    try:
        whole = io.BytesIO(b"".join((*parts, data[starts[-1] :])))
        with Image.open(whole, formats=("JPEG",)) as noisy:
            return ImageChops.difference(noisy, image).getbbox() is None
    except OSError:
        return False


def _end_of_scan(data: bytes, start: int) -> int:
    offset = start
    while (offset := data.find(b"\xff", offset)) >= 0 and offset + 1 < len(data):
        if data[offset + 1] and data[offset + 1] not in range(0xD0, 0xD8):
            return offset
        offset += 2
    return len(data)


_LOOKS: tuple[tuple[int, bytes, Callable[[bytes], str | None]], ...] = (
    (0, PNG_HEAD, _png),
    (0, b"\xff\xd8\xff", _jpeg),
    (0, b"GIF8", _gif),
    (0, b"RIFF", _riff),
    (0, b"RF64", _riff),
    (0, b"OggS", _ogg),
    (4, b"ftyp", _boxes),
    (0, b"\x1a\x45\xdf\xa3", _matroska),
)
"""(offset, mark, what looks at files that have it there)"""
