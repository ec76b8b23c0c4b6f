# SPDX-License-Identifier: Apache-2.0
import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.media import encode_files, encode_media
from triton_diffusers.contract import WIRE, Kind, Tensor

IMAGE = Tensor("image", *WIRE[Kind.IMAGE])
AUDIO = Tensor("audio", *WIRE[Kind.AUDIO])


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def one(encoded: dict[str, np.ndarray], name: str) -> np.ndarray:
    assert list(encoded) == [name]
    return encoded[name]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
def test_pictures_of_one_size_and_mode_travel_as_their_pixels(mode, channels):
    pixels = [noise(5, 7, channels) for _ in range(3)]
    images = [Image.fromarray(p[:, :, 0] if channels == 1 else p, mode) for p in pixels]
    array = one(encode_media(IMAGE, images), "image")
    assert array.dtype == np.uint8
    assert np.array_equal(array, np.stack(pixels))
    assert one(encode_media(IMAGE, images[0]), "image").shape == (1, 5, 7, channels)


@pytest.mark.parametrize(
    ("mode", "sent"),
    [("1", "L"), ("P", "RGB"), ("LA", "LA"), ("CMYK", "RGB"), ("YCbCr", "RGB"), ("HSV", "RGB")],
)
def test_other_modes_are_converted(mode, sent):
    image = Image.fromarray(noise(6, 4, 3)).convert(mode)
    expected = np.asarray(image.convert(sent)).reshape(1, 6, 4, -1)
    assert np.array_equal(one(encode_media(IMAGE, image), "image"), expected)


def test_a_palette_with_transparency_keeps_it():
    image = Image.fromarray(noise(6, 4, 3)).convert("P")
    image.info["transparency"] = 3
    assert one(encode_media(IMAGE, image), "image").shape == (1, 6, 4, 4)


DEEP = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5957  # the last is 65527
LIGHT = (DEEP / 65535).astype(np.float32)


@pytest.mark.parametrize(
    "given",
    [DEEP, LIGHT, LIGHT.astype(np.float16), Image.fromarray(DEEP), Image.fromarray(LIGHT)],
    ids=["uint16", "float32", "float16", "I;16", "F"],
)
def test_more_than_eight_bits_are_scaled(given):
    found = one(encode_media(IMAGE, given), "image").reshape(3, 4)
    assert np.abs(found - DEEP / 257).max() <= 0.5 + 0.13 * (getattr(given, "itemsize", 4) == 2)


def test_tensors_have_their_channels_first():
    torch = pytest.importorskip("torch")
    pixels = noise(2, 5, 7, 3)
    tensor = torch.from_numpy(pixels).movedim(-1, -3)
    for given, expected in ((tensor, pixels), (tensor[0] / 255, pixels[:1])):
        assert np.array_equal(one(encode_media(IMAGE, given), "image"), expected)
    mask = one(encode_media(IMAGE, torch.ones(5, 7, dtype=torch.bool)), "image")
    assert mask.tolist() == np.full((1, 5, 7, 1), 255).tolist()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_upright_as_its_file_is(orientation):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(noise(5, 7, 3)).save(file, "PNG", exif=exif)
    photo = Image.open(file)
    expected = np.asarray(ImageOps.exif_transpose(photo))
    assert np.array_equal(one(encode_media(IMAGE, photo), "image")[0], expected)


@pytest.mark.parametrize(
    "sizes", [[(5, 7, 3), (6, 7, 3)], [(5, 7, 3), (5, 7, 4)], [(5, 7, 1), (5, 7, 3)]]
)
def test_several_sizes_or_modes_travel_as_png_without_loss(sizes):
    pixels = [noise(*size) for size in sizes]
    images = [Image.fromarray(p[:, :, 0] if p.shape[2] == 1 else p) for p in pixels]
    files = one(encode_media(IMAGE, images), "image_bytes")
    assert files.dtype == np.object_
    for file, original, image in zip(files, pixels, images, strict=True):
        decoded = Image.open(io.BytesIO(file))
        assert (decoded.format, decoded.mode) == ("PNG", image.mode)
        assert np.array_equal(np.asarray(decoded).reshape(original.shape), original)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (noise(5, 7), (1, 5, 7, 1)),
        (noise(5, 7, 3), (1, 5, 7, 3)),
        (noise(2, 5, 7, 4), (2, 5, 7, 4)),
        (noise(5, 7, 2), (1, 5, 7, 2)),
        ([noise(5, 7, 3), noise(5, 7, 3)], (2, 5, 7, 3)),
        ([noise(2, 5, 7, 3), noise(5, 7, 3)], (3, 5, 7, 3)),
        ([noise(5, 7, 3), Image.fromarray(noise(5, 7, 3))], (2, 5, 7, 3)),
        (noise(5, 14, 3)[:, ::2], (1, 5, 7, 3)),
    ],
)
def test_arrays_travel_as_they_are(given, shape):
    assert one(encode_media(IMAGE, given), "image").shape == shape


def test_a_mask_of_booleans_is_black_and_white():
    mask = np.array([[True, False], [False, True]])
    array = one(encode_media(IMAGE, mask), "image")
    assert array[0, :, :, 0].tolist() == [[255, 0], [0, 255]]


def test_files_travel_as_they_are(tmp_path):
    path = tmp_path / "cat.jpg"
    Image.fromarray(noise(5, 7, 3)).save(path)
    content = path.read_bytes()
    for given in (path, str(path), content, bytearray(content), memoryview(content)):
        assert one(encode_media(IMAGE, given), "image_bytes").tolist() == [content]
    mixed = one(encode_media(IMAGE, [path, Image.fromarray(noise(5, 7, 3))]), "image_bytes")
    assert mixed[0] == content
    assert mixed[1].startswith(b"\x89PNG")
    assert encode_media(IMAGE, "data:image/png;base64,AAAA")["image_bytes"].tolist() == [
        b"data:image/png;base64,AAAA"
    ]


def test_files_of_equal_length_stay_separate():
    assert encode_media(IMAGE, [b"ab", b"cd"])["image_bytes"].tolist() == [b"ab", b"cd"]


def test_the_bytes_input_itself(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    files = encode_files("image_bytes", [b"raw", "aGVsbG8=", tmp_path / "x"])
    assert files.tolist() == [b"raw", b"aGVsbG8=", b"content"]
    with pytest.raises(InvalidRequest, match="image_bytes"):
        encode_files("image_bytes", 5)


@pytest.mark.parametrize(
    "given",
    [
        "cat.pgn",
        "no\0such",
        "",
        "x" * 5000,
        [],
        5,
        None,
        {"a": 1},
        noise(5),
        noise(3, 5, 7),
        noise(5, 7, 5),
        noise(1, 2, 5, 7, 3),
        noise(5, 7, 3).astype(np.float32),
        noise(5, 7, 3).astype(np.float32) / 127.5 - 1,
        np.full((5, 7), np.nan),
        noise(5, 7, 3).astype(np.int64),
        [[noise(5, 7, 3)]] * 2,
        Image.new("F", (4, 4), 2.0),
        Image.new("I", (4, 4), 200),
    ],
    ids=lambda given: repr(given)[:20],
)
def test_what_is_no_picture_is_refused(given):
    with pytest.raises(InvalidRequest, match="input 'image'") as caught:
        encode_media(IMAGE, given)
    assert len(str(caught.value)) < 400


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        encode_media(IMAGE, tmp_path)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (np.linspace(-1, 1, 8, dtype=np.float32), (1, 8)),
        (np.zeros((2, 8), np.float32), (2, 8)),
        (np.zeros(8, np.float64), (1, 8)),
        ([np.zeros((2, 8), np.float32)], (2, 8)),
    ],
)
def test_sound_travels_as_float32(given, shape):
    array = one(encode_media(AUDIO, given), "audio")
    assert (array.shape, array.dtype) == (shape, np.float32)


@pytest.mark.parametrize(
    "given", [np.zeros(8, np.int16), np.zeros((1, 2, 8), np.float32), [0.1, 0.2], "no.wav"]
)
def test_what_is_no_sound_is_refused(given):
    with pytest.raises(InvalidRequest, match="input 'audio'"):
        encode_media(AUDIO, given)


def test_sound_files_travel_as_they_are():
    assert encode_media(AUDIO, b"RIFF")["audio_bytes"].tolist() == [b"RIFF"]
