# SPDX-License-Identifier: Apache-2.0
import base64
import io
import json

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from triton_diffusers.client import DiffusersClientError, Result
from triton_diffusers.client.media import file_array
from triton_diffusers.media.decode import format_of, read_frames, read_sound


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def encoded(file_format: str, *images: Image.Image) -> bytes:
    file = io.BytesIO()
    rest = {"save_all": True, "append_images": images[1:]} if len(images) > 1 else {}
    images[0].save(file, file_format, **rest)
    return file.getvalue()


def pictures(count: int = 1, channels: int = 3) -> Result:
    return Result({"images": noise(count, 6, 8, channels), "seed": np.arange(count)})


def video(count: int = 1, height: int = 16, width: int = 24) -> Result:
    ramp = np.linspace(0, 255, width, dtype=np.uint8)[None, None, None, :, None]
    brightness = np.arange(1, 6, dtype=np.uint8)[None, :, None, None, None]
    frames = np.broadcast_to(ramp // 5 * brightness, (count, 5, height, width, 3))
    return Result({"frames": frames, "info": file_array([json.dumps({"fps": 8}).encode()])})


def sound(count: int = 1) -> Result:
    audios = np.random.default_rng(0).uniform(-1, 1, (count, 2, 100)).astype(np.float32)
    return Result({"audios": audios, "sampling_rate": np.array([16000])})


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images(channels, mode):
    result = pictures(2, channels)
    assert [(i.mode, i.size) for i in result.images] == [(mode, (8, 6))] * 2
    pixels = np.asarray(result.images[1]).reshape(6, 8, channels)
    assert np.array_equal(pixels, result.arrays["images"][1])
    assert result.seeds == [0, 1]
    assert (result.frames, len(result.audios), result.sampling_rate) == ([], 0, None)


def test_frames():
    frames = video(2).frames
    assert (len(frames), len(frames[0]), frames[0][0].size) == (2, 5, (24, 16))


def test_what_a_response_leaves_out_is_empty():
    empty = Result({})
    assert (empty.images, empty.frames, empty.media, empty.seeds, empty.info) == (
        [],
        [],
        [],
        [],
        {},
    )
    assert empty.nsfw_content_detected is None
    assert empty.audios.shape == (0, 0, 0)


def test_flags_and_info():
    info = file_array([json.dumps({"model": "demo", "steps": 3}).encode()])
    result = Result({"nsfw_content_detected": np.array([True, False]), "info": info})
    assert result.nsfw_content_detected == [True, False]
    assert result.info == {"model": "demo", "steps": 3}


@pytest.mark.parametrize("file_format", ["png", "jpeg", "webp"])
def test_encoded_pictures_are_decoded(file_format):
    files = [
        encoded(
            file_format,
            Image.fromarray(noise(6, 8, 3)),
        )
        for _ in range(2)
    ]
    result = Result({"media": file_array(files)})
    assert result.media == files
    assert [format_of(file) for file in files] == [file_format] * 2
    assert [image.size for image in result.images] == [(8, 6)] * 2
    assert result.frames == []


def test_base64_is_undone():
    file = encoded("png", Image.new("RGB", (2, 2)))
    result = Result({"media": file_array([base64.b64encode(file)])}, base64=True)
    assert result.media == [file]
    assert result.images[0].size == (2, 2)


def test_an_encoded_gif_is_a_video():
    shades = [Image.new("RGB", (8, 6), (n * 60, 0, 0)) for n in range(4)]
    result = Result({"media": file_array([encoded("gif", *shades)])})
    assert [len(frames) for frames in result.frames] == [4]
    assert result.images == []


def test_saving_several_numbers_them(tmp_path):
    paths = pictures(3).save(tmp_path / "x.png")
    assert [path.name for path in paths] == ["x-0.png", "x-1.png", "x-2.png"]
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tiff"])
def test_pictures_are_saved_without_loss(tmp_path, suffix):
    result = pictures()
    (path,) = result.save(str(tmp_path / f"x{suffix}"))
    assert path == tmp_path / f"x{suffix}"
    assert np.array_equal(np.asarray(Image.open(path)), result.arrays["images"][0])


@pytest.mark.parametrize(
    ("suffix", "name"), [(".jpg", "JPEG"), (".jpeg", "JPEG"), (".webp", "WEBP")]
)
def test_pictures_are_saved_by_suffix(tmp_path, suffix, name):
    (path,) = pictures().save(tmp_path / f"x{suffix}")
    assert Image.open(path).format == name


def test_what_the_server_encoded_is_written_as_it_came(tmp_path):
    for file_format, suffix in (
        ("jpeg", ".jpg"),
        ("png", ".png"),
        ("webp", ".webp"),
        ("gif", ".gif"),
    ):
        file = encoded(file_format, Image.fromarray(noise(6, 8, 3)))
        (path,) = Result({"media": file_array([file])}).save(tmp_path / f"x{suffix}")
        assert path.read_bytes() == file
    for file, suffix in ((b"\0\0\0\x20ftypisom", ".mp4"), (b"fLaC...", ".flac")):
        (path,) = Result({"media": file_array([file])}).save(tmp_path / f"x{suffix}")
        assert path.read_bytes() == file


def test_an_encoded_picture_is_saved_in_another_format(tmp_path):
    original = Image.fromarray(noise(6, 8, 3))
    result = Result({"media": file_array([encoded("png", original)])})
    (path,) = result.save(tmp_path / "x.bmp")
    assert np.array_equal(np.asarray(Image.open(path)), np.asarray(original))


def test_a_video_is_saved_as_gif_at_its_own_speed(tmp_path):
    (path,) = video().save(tmp_path / "x.gif")
    assert Image.open(path).info["duration"] == 120
    paths = video(2).save(tmp_path / "y.gif", fps=20)
    assert [p.name for p in paths] == ["y-0.gif", "y-1.gif"]
    assert Image.open(paths[0]).info["duration"] == 50


@pytest.mark.parametrize(("height", "width"), [(16, 24), (15, 23)])
def test_a_video_is_saved_as_mp4(tmp_path, height, width):
    result = video(1, height, width)
    (path,) = result.save(tmp_path / "x.mp4")
    frames = read_frames(path.read_bytes())
    assert len(frames) == 5
    decoded = np.asarray(frames[2]).astype(int)[:height, :width]
    assert np.abs(decoded - result.arrays["frames"][0, 2]).mean() < 12
    again = Result({"media": file_array([path.read_bytes()])})
    assert len(again.frames[0]) == 5


@pytest.mark.parametrize("name", ["audio", "sound"])
def test_a_video_is_saved_with_its_sound(tmp_path, name):
    samples = sound().arrays["audios"]
    told = {name: samples[0] if name == "sound" else samples, "sampling_rate": np.array([16000])}
    result = Result(video().arrays | told)
    assert np.array_equal(result.audios, samples)
    (path,) = result.save(tmp_path / "x.mp4")
    assert len(read_frames(path.read_bytes())) == 5
    with av.open(str(path)) as container:
        assert [(s.channels, s.rate) for s in container.streams.audio] == [(2, 16000)]
    (path,) = result.save(tmp_path / "x.wav")
    assert read_sound(path.read_bytes())[0].shape == (2, 100)


def test_a_video_is_saved_without_a_sound_that_does_not_fit(tmp_path):
    wave = np.zeros((1, 3, 100), np.float32)
    for told in (
        {"audio": wave, "sampling_rate": np.array([16000])},
        {"audio": wave[:, :2], "sampling_rate": np.array([-1])},
        {"sound": wave[0, 0], "sampling_rate": np.array([0])},
    ):
        (path,) = Result(video().arrays | told).save(tmp_path / "x.mp4")
        with av.open(str(path)) as container:
            assert not container.streams.audio
            assert len(list(container.decode(video=0))) == 5


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_sound_is_saved_and_read(tmp_path, suffix):
    result = sound()
    (path,) = result.save(tmp_path / f"x.{suffix}")
    info = soundfile.info(path)
    assert (info.channels, info.samplerate, info.frames) == (2, 16000, 100)
    assert (info.format, info.subtype) == (suffix.upper(), "PCM_16")
    samples, rate = read_sound(path.read_bytes())
    assert (samples.shape, samples.dtype, rate) == ((2, 100), np.float32, 16000)
    assert np.abs(samples - result.audios[0]).max() < 1e-4
    again = Result({"media": file_array([path.read_bytes()])})
    assert (again.audios.shape, again.sampling_rate) == ((1, 2, 100), 16000)


def test_loud_sound_is_clipped(tmp_path):
    loud = Result(
        {"audios": np.full((1, 1, 4), 3.0, np.float32), "sampling_rate": np.array([8000])}
    )
    (path,) = loud.save(tmp_path / "x.wav")
    assert read_sound(path.read_bytes())[0].max() > 0.99


def test_arrays_are_saved(tmp_path):
    depth = {"prediction": np.ones((1, 2, 3, 1), np.float32), "info": file_array([b"{}"])}
    (path,) = Result(depth).save(tmp_path / "x.npy")
    assert np.load(path).shape == (1, 2, 3, 1)
    result = pictures()
    (path,) = result.save(tmp_path / "y.npy")
    assert np.array_equal(np.load(path), result.arrays["images"])
    (path,) = result.save(tmp_path / "y.npz")
    assert set(np.load(path).files) == {"images", "seed"}


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (pictures(), "x.wav"),
        (pictures(), "x.mp4"),
        (video(), "x.png"),
        (sound(), "x.gif"),
        (pictures(), "x.xyz"),
        (pictures(), "x"),
        (Result({}), "x.npy"),
        (Result({"media": file_array([b"fLaC"])}), "x.wav"),
    ],
)
def test_what_does_not_fit_the_suffix_is_refused(result, name, tmp_path):
    with pytest.raises(DiffusersClientError):
        result.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("result", "suffixes"),
    [
        (pictures(), ".jpg, .npy, .npz, .png, .webp."),
        (video(), ".gif, .mp4, .npy, .npz."),
        (sound(), ".flac, .npy, .npz, .wav."),
        (Result({"media": file_array([b"fLaC"])}), ".flac, .npz, .wav."),
    ],
)
def test_a_refused_suffix_names_those_that_fit(result, suffixes, tmp_path):
    with pytest.raises(DiffusersClientError, match="'o' has no suffix") as caught:
        result.save(tmp_path / "o")
    assert str(caught.value).endswith(f"fit this result: {suffixes}")
    with pytest.raises(DiffusersClientError, match=r"'\.xyz' cannot be written"):
        result.save(tmp_path / "o.xyz")


def test_the_repr_shows_shapes_not_pixels():
    assert repr(pictures()) == "Result(images: uint8 [1, 6, 8, 3], seed: int64 [1])"
