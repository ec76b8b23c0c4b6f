# SPDX-License-Identifier: Apache-2.0
"""Pictures, clips and sound as files, in and out."""

from __future__ import annotations

import base64
import io

import av
import numpy as np
import pytest
import soundfile
from PIL import Image, ImageSequence

from tests.parity.compare import difference
from tests.parity.served import PROTOCOLS
from tests.server.tiny_entries import SMALL
from tests.tiny.media import draw_clip, draw_cutout, draw_mask, draw_picture, make_sound

PICTURE = {"prompt": "a red fox in the snow", **SMALL}
REPAINT = {"prompt": "a red fox in the snow", "num_inference_steps": 4, "strength": 0.6}
EDIT = {"prompt": "a red fox", "height": 128, "width": 192, "num_inference_steps": 1}
CLIP = {
    "prompt": "a kite over a field",
    "height": 16,
    "width": 32,
    "num_frames": 5,
    "num_inference_steps": 2,
    "max_sequence_length": 32,
}
VIDEO = {n: v for n, v in CLIP.items() if n != "num_frames"} | {
    "num_inference_steps": 4,
    "strength": 0.6,
}
SOUND = {"prompt": "rain", "num_inference_steps": 2, "audio_end_in_s": 0.75}


def png(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG", **options)
    return file.getvalue()


def as_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def as_url(content: bytes) -> str:
    return "data:image/png;base64," + as_base64(content)


def test_several_pictures_of_different_sizes(tiny_server):
    images = [draw_picture(1, 48, 32), draw_picture(2, 32, 40)]
    expected = tiny_server.plain("edits", EDIT | {"image": images})
    files = [png(image) for image in images]
    tiny_server.check("edits", expected, **EDIT, image=images)
    tiny_server.check("edits", expected, **EDIT, image=files)
    tiny_server.check("edits", expected, **EDIT, image_bytes=[as_url(files[0]), files[1]])


def test_several_pictures_of_one_size(tiny_server):
    images = [draw_picture(1, 48, 32), draw_picture(2, 48, 32)]
    expected = tiny_server.plain("edits", EDIT | {"image": images})
    tiny_server.check("edits", expected, **EDIT, image=images)
    tiny_server.check("edits", expected, **EDIT, image=np.stack([np.asarray(i) for i in images]))


def test_a_picture_in_every_form(tiny_server, tmp_path):
    image = draw_picture(5, 48, 32)
    expected = tiny_server.plain("repaints", REPAINT | {"image": image})
    content = png(image)
    (tmp_path / "fox.png").write_bytes(content)
    for form in (image, np.asarray(image), content, tmp_path / "fox.png", [image]):
        tiny_server.check("repaints", expected, **REPAINT, image=form)
    for text in (content, as_base64(content), as_url(content)):
        tiny_server.check("repaints", expected, **REPAINT, image_bytes=text)


def test_a_cutout_and_a_mask_of_ones_in_every_form(tiny_server):
    """Four channels are no latents, and 1 is white where nothing is brighter."""
    picture, mask = draw_cutout(5, 48, 32), draw_mask(48, 32)
    call = {"prompt": "a red fox in the snow", "num_inference_steps": 2} | {"strength": 0.8}
    images = {"image": picture.convert("RGB"), "mask_image": mask}
    expected = tiny_server.plain("inpaints", call | images)
    ones = (np.asarray(mask) // 255).astype(np.uint8)
    for form, white in ((picture, ones), (np.asarray(picture), ones > 0), (png(picture), mask)):
        tiny_server.check("inpaints", expected, **call, image=form, mask_image=white)


def test_a_photo_is_turned_upright_as_load_image_does(tiny_server):
    image = draw_picture(6, 32, 48)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees
    upright = image.transpose(Image.Transpose.ROTATE_270)
    expected = tiny_server.plain("repaints", REPAINT | {"image": upright})
    assert expected["images"].shape == (1, 32, 48, 3)
    tiny_server.check("repaints", expected, **REPAINT, image_bytes=png(image, exif=exif))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("wanted", "options"),
    [("png", {}), ("jpeg", {}), ("jpeg", {"quality": 30}), ("webp", {}), ("webp", {"quality": 10})],
    ids=lambda value: value if isinstance(value, str) else str(value.get("quality", "")),
)
def test_picture_files(tiny_server, protocol, wanted, options):
    call = PICTURE | {"num_images_per_prompt": 2}
    tensor = tiny_server.ask("pictures", protocol, **call, seed=3)
    chosen = {f"output_{name}": value for name, value in options.items()}
    result = tiny_server.ask("pictures", protocol, **call, seed=3, output_format=wanted, **chosen)
    assert "images" not in result.arrays
    assert result.seeds == [3]
    for file, source in zip(result.media, tensor.images, strict=True):
        with Image.open(io.BytesIO(file)) as image:
            assert image.format == wanted.upper()
            found = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(found, _through(source, wanted, options))


def _through(image: Image.Image, wanted: str, options: dict) -> np.ndarray:
    """The pixels that a file of this format keeps."""
    file = io.BytesIO()
    image.save(file, format=wanted, **options)
    return np.asarray(Image.open(file).convert("RGB"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_picture_files_as_base64(tiny_server, protocol):
    call = PICTURE | {"seed": 3, "output_format": "png"}
    result = tiny_server.ask("pictures", protocol, **call, output_base64=True)
    (text,) = result.arrays["media"]
    assert base64.b64decode(text, validate=True) == result.media[0]
    assert result.media == tiny_server.ask("pictures", protocol, **call).media


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wanted", ["mp4", "gif"])
@pytest.mark.parametrize(("fps", "expected"), [(None, 16), (10.0, 10)])
def test_video_files(tiny_server, protocol, wanted, fps, expected):
    call = CLIP | {"num_videos_per_prompt": 2, "seed": 3}
    frames = tiny_server.ask("wan", protocol, **call).arrays["frames"]
    result = tiny_server.ask("wan", protocol, **call, output_format=wanted, fps=fps)
    assert "frames" not in result.arrays
    for file, source in zip(result.media, frames, strict=True):
        found, played = read_video(file)
        assert found.shape == source.shape
        assert played == pytest.approx(expected, rel=0.05)
        # lossy, but frame by frame the same picture
        for a, b in zip(found, source, strict=True):
            assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.7


def read_video(file: bytes) -> tuple[np.ndarray, float]:
    """Frames uint8 [F, H, W, 3] of an MP4 or GIF, and its frames per second."""
    if file.startswith(b"GIF"):
        image = Image.open(io.BytesIO(file))
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
        return np.stack(frames), 1000 / image.info["duration"]
    with av.open(io.BytesIO(file)) as container:
        rate = float(container.streams.video[0].average_rate)
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    return np.stack(frames), rate


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wanted", ["wav", "flac"])
def test_sound_files(tiny_server, protocol, wanted):
    call = SOUND | {"num_waveforms_per_prompt": 2, "seed": 3}
    tensor = tiny_server.ask("sounds", protocol, **call)
    result = tiny_server.ask("sounds", protocol, **call, output_format=wanted)
    assert tensor.sampling_rate == result.arrays["sampling_rate"][0] == 800
    for file, source in zip(result.media, tensor.audios, strict=True):
        samples, rate = soundfile.read(io.BytesIO(file), dtype="float32", always_2d=True)
        assert rate == 800
        assert soundfile.info(io.BytesIO(file)).format == wanted.upper()
        np.testing.assert_allclose(samples.T, source.clip(-1, 1), atol=1 / 32767)


@pytest.mark.parametrize("form", ["mp4", "gif"])
def test_a_clip_as_file(tiny_server, form):
    clip = draw_clip(5, 24, 32, 16)
    content = write_video(clip, form)
    frames, _ = read_video(content)
    assert len(frames) == 5
    expected = tiny_server.plain("clips", VIDEO | {"video": [Image.fromarray(f) for f in frames]})
    tiny_server.check("clips", expected, **VIDEO, video=content)
    tiny_server.check("clips", expected, **VIDEO, video_bytes=as_base64(content))


def test_a_clip_as_frames(tiny_server):
    clip = draw_clip(5, 24, 32, 16)
    expected = tiny_server.plain("clips", VIDEO | {"video": clip})
    tiny_server.check("clips", expected, **VIDEO, video=clip)
    tiny_server.check("clips", expected, **VIDEO, video=[png(frame) for frame in clip])


def write_video(clip: list[Image.Image], form: str) -> bytes:
    file = io.BytesIO()
    if form == "gif":
        clip[0].save(file, format="GIF", save_all=True, append_images=clip[1:], duration=100)
        return file.getvalue()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = *clip[0].size, "yuv420p"
        for image in clip:
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_a_sound_file_brings_its_sampling_rate(tiny_server, form):
    file = io.BytesIO()
    soundfile.write(file, make_sound(800)[0], 800, format=form, subtype="PCM_16")
    samples, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")
    call = {"prompt": "rain", "num_inference_steps": 2}
    plain = {"initial_audio_waveforms": samples[None], "initial_audio_sampling_rate": 800}
    expected = tiny_server.plain("sounds", call | plain)
    result = tiny_server.check("sounds", expected, **call, initial_audio_waveforms=file.getvalue())
    assert result.info["arguments"]["initial_audio_sampling_rate"] == 800
    assert difference(expected["audios"], result.audios) == ""
