# SPDX-License-Identifier: Apache-2.0
"""Pictures, sounds and texts are what they are to diffusers' own loaders, however they are sent."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.pipeline.loaded import load_tiny
from tests.tiny import TINY
from tests.tiny.media import draw_cutout, draw_mask, draw_picture
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.request import build_inputs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import RequestError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import entry_inputs
from triton_diffusers.running.run import run_call

Load = Callable[[str], LoadedPipeline]
STEPS = {"prompt": "a fox", "num_inference_steps": 2}
SMALL = STEPS | {"height": 32, "width": 32}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load a tiny pipeline, once."""
    folder = tmp_path_factory.mktemp("tiny")
    return cache(lambda name: load_tiny(folder, name))


def _keywords_to_call(loaded: LoadedPipeline, keywords: dict[str, Any]) -> Any:
    inputs = {tensor.name: tensor for tensor in entry_inputs(loaded.signature)}
    return read_call(build_inputs(ServedEntry("x", inputs, {}, False), keywords), loaded)


def _ask(loaded: LoadedPipeline, **keywords: Any) -> dict[str, np.ndarray]:
    """One call through the client's tensors and the runtime, without a server."""
    call = _keywords_to_call(loaded, {"seed": 1, **keywords})
    return run_call(call, loaded, lambda *_: None)


def _plain(loaded: LoadedPipeline, **arguments: Any) -> np.ndarray:
    import torch

    torch.manual_seed(1)
    made = loaded.pipeline(**arguments, generator=torch.Generator().manual_seed(1)).images
    return np.stack([np.asarray(image) for image in made])


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _tensor(image: Image.Image) -> Any:
    """(C, H, W), 0..1, as torchvision and diffusers have it."""
    import torch

    pixels = np.array(image)
    return torch.from_numpy(pixels[..., None] if pixels.ndim == 2 else pixels).movedim(-1, 0) / 255


PHOTO = draw_picture(2, 48)
ROUND = draw_mask(48)
PALETTE = draw_cutout(2, 48).convert("RGB").quantize(16)
PALETTE.info["transparency"] = 3
PICTURES = {
    "RGB": PHOTO,
    "RGBA": draw_cutout(2, 48),
    "L": PHOTO.convert("L"),
    "LA": draw_cutout(2, 48).convert("LA"),
    "P": PALETTE,
    "1": PHOTO.convert("1"),
    "CMYK": PHOTO.convert("CMYK"),
}


@pytest.mark.parametrize("mode", PICTURES)
@pytest.mark.parametrize("name", ["stable-diffusion-img2img", "stable-diffusion-inpaint"])
def test_a_picture_of_any_mode_is_what_load_image_reads(
    load: Load, tmp_path: Path, name: str, mode: str
) -> None:
    from diffusers.utils import load_image

    loaded, image, path = load(name), PICTURES[mode], tmp_path / "picture.tif"
    image.save(path, "TIFF") if mode == "CMYK" else image.save(path, "PNG")
    more = {"strength": 0.8} | ({"mask_image": ROUND} if "inpaint" in name else {})
    expected = _plain(loaded, image=load_image(str(path)), **STEPS, **more)
    forms = [image, path, [image]]
    if mode in ("RGB", "RGBA", "L", "LA"):
        forms += [np.asarray(image), np.asarray(image) / np.float32(255), _tensor(image)]
    for form in forms:
        found = _ask(loaded, image=form, **STEPS, **more)["images"]
        np.testing.assert_array_equal(found, expected)


WHITE = np.asarray(ROUND) > 0
MASKS = {
    "L": ROUND,
    "RGB": ROUND.convert("RGB"),
    "RGBA": ROUND.convert("RGBA"),
    "LA": ROUND.convert("LA"),
    "P": ROUND.convert("P"),
    "1": ROUND.convert("1"),
    "file": _png(ROUND.convert("RGBA")),
    "bool": WHITE,
    "ones": WHITE.astype(np.uint8),
    "ones-file": _png(Image.fromarray(WHITE.astype(np.uint8))),
    "ones-rgb": np.repeat(WHITE.astype(np.uint8)[..., None], 3, axis=-1),
    "16-bit": WHITE.astype(np.uint16) * 65535,
    "float": WHITE.astype(np.float32),
}


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize(
    "name", ["stable-diffusion-inpaint", "sdxl-inpaint", "flux-inpaint", "qwen-image-inpaint"]
)
def test_a_mask_of_any_form_repaints_the_same(load: Load, name: str, form: str) -> None:
    loaded, call = load(name), dict(TINY[name].inputs())
    picture = {"image": call.pop("image").resize(ROUND.size)}
    call |= {k: v for k, v in zip(("height", "width"), ROUND.size[::-1], strict=True) if k in call}
    del call["mask_image"]
    expected = _plain(loaded, **call, **picture, mask_image=ROUND)
    found = _ask(loaded, **call, **picture, mask_image=MASKS[form])["images"]
    np.testing.assert_array_equal(found, expected)


def test_layers_keep_their_alpha_and_get_one(load: Load) -> None:
    loaded = load("qwen-image-layered")
    for image in (draw_cutout(1, 32), draw_picture(1)):
        call = _keywords_to_call(loaded, {"image": image, "prompt": "a"})
        np.testing.assert_array_equal(call.kwargs["image"], image.convert("RGBA"))


@pytest.mark.parametrize("negative", ["negative_prompt", None])
@pytest.mark.parametrize(
    "name", ["stable-diffusion", "sdxl", "stable-diffusion-3", "pixart-sigma", "wan22-t2v"]
)
def test_a_negative_prompt_that_is_cut_is_told(load: Load, name: str, negative: str | None) -> None:
    call = dict(TINY[name].inputs()) | {"prompt": "a fox", "negative_prompt": "blurry"}
    plain = _ask(load(name), **call)
    result = _ask(load(name), **call | ({negative: "too dark " * 60} if negative else {}))
    told = json.loads(result["info"][0])["warnings"]
    assert any("'negative_prompt' was truncated" in note for note in told) == bool(negative)
    if not negative:
        main = "frames" if "frames" in plain else "images"
        np.testing.assert_array_equal(result[main], plain[main])


def test_one_picture_for_several_networks_is_a_list(tmp_path: Path) -> None:
    pipeline = TINY["stable-diffusion-two-controlnets"].build()
    pipeline.controlnet.nets = pipeline.controlnet.nets[:1]
    pipeline.save_pretrained(tmp_path / "one")
    loaded = load_pipeline(ServeConfig(model=str(tmp_path / "one")), tmp_path, "cpu")
    image, call = draw_picture(3), SMALL | {"controlnet_conditioning_scale": 0.5}
    expected = _plain(loaded, image=[image], **call)
    np.testing.assert_array_equal(_ask(loaded, image=image, **call)["images"], expected)


def test_an_empty_list_is_one(load: Load) -> None:
    loaded = load("sana")
    call = TINY["sana"].inputs()
    found = _ask(loaded, **call, complex_human_instruction=[])["images"]
    np.testing.assert_array_equal(found, _plain(loaded, **call, complex_human_instruction=[]))
    assert not np.array_equal(found, _ask(loaded, **call)["images"])


def test_thresholds_by_step_have_numbers_for_keys(tmp_path: Path) -> None:
    import diffusers

    from tests.tiny.stable_diffusion import components

    cls = diffusers.StableDiffusionAttendAndExcitePipeline
    cls(**components(), requires_safety_checker=False).save_pretrained(tmp_path / "excite")
    loaded = load_pipeline(ServeConfig(model=str(tmp_path / "excite")), tmp_path, "cpu")
    call = SMALL | {"token_indices": [1], "max_iter_to_alter": 2, "attn_res": (8, 8)}
    made = set()
    for thresholds in ({0: 0.99}, {5: 0.7}):
        found = _ask(loaded, **call, thresholds=thresholds)["images"]
        np.testing.assert_array_equal(found, _plain(loaded, **call, thresholds=thresholds))
        made.add(found.tobytes())
    assert len(made) == 2


def _tone(rate: int, channels: int, seconds: float = 1.0) -> np.ndarray:
    """float32 [channels, samples]: 50 Hz, of each channel another loudness."""
    times = np.arange(int(rate * seconds)) / rate
    return np.stack([np.sin(times * 100 * np.pi) / (n + 2) for n in range(channels)]).astype("f4")


def _wav(samples: np.ndarray, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples.T, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


SOUND = "initial_audio_waveforms"


@pytest.mark.parametrize("rate", [800, 500, 44_100, 48_000])
@pytest.mark.parametrize("as_file", [True, False])
def test_sound_of_any_rate_arrives_at_the_pipelines(load: Load, rate: int, as_file: bool) -> None:
    """The tiny autoencoder's rate is 800."""
    sent = {SOUND: _wav(_tone(rate, 2), rate)} if as_file else {SOUND: _tone(rate, 2)}
    sent |= {} if as_file else {"initial_audio_sampling_rate": rate}
    call = _keywords_to_call(load("stable-audio-variation"), {"prompt": "rain", **sent})
    assert call.kwargs["initial_audio_sampling_rate"] == 800
    found, expected = call.kwargs[SOUND].numpy(), _tone(800, 2)[None]
    if rate == 800:
        np.testing.assert_array_equal(found, expected)
    middle = slice(100, 700)  # a filter knows nothing before the start
    np.testing.assert_allclose(found[..., middle], expected[..., middle], atol=5e-3)


def test_channels_are_matched_or_refused(load: Load) -> None:
    loaded = load("ace-step")
    stereo = _tone(800, 2)
    for name, sound, expected in (
        ("src_audio", stereo, stereo),
        ("reference_audio", stereo[:1], np.repeat(stereo[:1], 2, axis=0)),
    ):
        call = _keywords_to_call(loaded, {"prompt": "a", name: _wav(sound, 800)})
        np.testing.assert_array_equal(call.kwargs[name].numpy(), expected)
    with pytest.raises(RequestError, match="'src_audio': 3 channels; send 1 or 2"):
        _keywords_to_call(loaded, {"prompt": "a", "src_audio": _wav(_tone(800, 3), 800)})


def test_two_rates_for_one_sound_are_refused(load: Load) -> None:
    sent = {SOUND: _wav(_tone(500, 1), 500), "initial_audio_sampling_rate": 800}
    with pytest.raises(RequestError, match=r"800, but the file of .* states 500; leave"):
        _keywords_to_call(load("stable-audio-variation"), {"prompt": "rain", **sent})
