# SPDX-License-Identifier: Apache-2.0
"""What a served entry returns is what plain diffusers returns, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from tests.parity.fresh import call_fresh
from tests.parity.in_process import check_in_process
from tests.parity.plain import PlainCall
from tests.parity.run import Outcome, Runner
from tests.tiny import TINY, save
from triton_diffusers.pipelines.signature import read_signature

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TIMEOUT_S = 840
COVERED = (
    {"StableDiffusionPipeline"},
    {"StableDiffusionImg2ImgPipeline"},
    {"StableDiffusionInpaintPipeline"},
    {"StableDiffusionXLPipeline"},
    {"StableDiffusion3Pipeline"},
    {"FluxPipeline"},
    {"FluxKontextPipeline", "FluxImg2ImgPipeline"},
    {"QwenImagePipeline"},
    {"QwenImageEditPlusPipeline"},
    {"ZImagePipeline"},
    {"PixArtSigmaPipeline"},
    {"SanaPipeline"},
    {"WanPipeline"},
    {"WanImageToVideoPipeline"},
    {"SanaVideoPipeline"},
    {"LTXPipeline", "HunyuanVideoPipeline"},
    {"CogVideoXPipeline"},
    {"WanVideoToVideoPipeline", "CogVideoXVideoToVideoPipeline"},
    {"StableAudioPipeline", "AudioLDM2Pipeline"},
    {"DDPMPipeline", "DDIMPipeline"},
    {"MarigoldDepthPipeline"},
)
"""One of each set at least; the project promises more than 30 classes in all."""

SERVED = (
    *("ace-step", "dance-diffusion", "ddim", "deepfloyd-if-super-resolution", "dit", "flux"),
    *("flux2-klein", "kandinsky", "kandinsky-prior", "kandinsky5-t2i", "latte", "ltx-long", "ltx2"),
    *("marigold-depth", "qwen-image", "qwen-image-controlnet", "qwen-image-layered", "repaint"),
    *("sana-video", "sdxl", "sdxl-img2img", "stable-audio", "stable-audio-variation"),
    *("stable-diffusion", "stable-diffusion-3", "stable-diffusion-adapter"),
    *("stable-diffusion-gligen", "stable-diffusion-inpaint", "stable-diffusion-ldm3d"),
    *("stable-diffusion-instruct-pix2pix", "stable-diffusion-pag"),
    *("stable-diffusion-two-controlnets", "stable-video-diffusion", "unidiffuser"),
    *("wan-animate", "wan-i2v", "wan-vace", "wan22-t2v"),
)
"""These go through a tritonserver, over both protocols: one at least of every kind of parameter, of
every input that a test sends and of every output. The others are loaded and called as a stub does
it, in a process of their own; `scripts/parity.py --tiny` serves them all."""

FAILS_IN_DIFFUSERS = {"stable-diffusion-ldm3d": "Invalid mode for data type"}
"""LDM3D writes its depth as I;16 pictures, which Pillow 13 refuses: an error either way."""


@pytest.fixture(scope="session")
def outcomes(request, tmp_path_factory) -> Iterator[dict[str, Future[Outcome]]]:
    """Every selected pipeline, in the order of the tests that wait for them."""
    tiny, served = tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("served")
    asked = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.originalname == test_output_is_identical.__name__
    ]
    # beside another lane, one at a time is enough for two cores
    lanes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with Runner(served, workers=2 if lanes == 1 else 1) as runner:
        yield {name: runner.submit(name, partial(_tiny_call, name, tiny)) for name in asked}


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("entries")


def _tiny_call(name, folder) -> PlainCall:
    call_fresh(save, name, folder)
    return PlainCall(folder / name, TINY[name].inputs(), load_kwargs=TINY[name].load_kwargs)


@pytest.mark.parametrize("name", SERVED)
def test_output_is_identical(name, outcomes):
    _check(name, outcomes[name].result(TIMEOUT_S))


@pytest.mark.parametrize("name", [name for name in TINY if name not in SERVED])
def test_output_is_identical_in_process(name, folders):
    tiny, entries = folders
    _check(name, check_in_process(name, _tiny_call(name, tiny), entries))


def _check(name: str, outcome: Outcome) -> None:
    if name in FAILS_IN_DIFFUSERS and outcome.plain_error:
        assert FAILS_IN_DIFFUSERS[name] in outcome.plain_error
        assert outcome.fails_alike, outcome.verdict
    else:
        assert outcome.is_identical, f"{outcome.verdict}\n{outcome.log}"


def test_those_that_are_served_cover_every_kind():
    covered, everything = call_fresh(_kinds, SERVED), call_fresh(_kinds, tuple(TINY))
    assert not everything - covered
    assert len({TINY[name].pipeline_class for name in SERVED}) >= 30


def _kinds(names: tuple[str, ...]) -> set[str]:
    """Return the kinds of parameters, the outputs and the inputs of tests of these pipelines."""
    import diffusers

    found = set()
    for name in names:
        signature = read_signature(getattr(diffusers, TINY[name].pipeline_class))
        found |= {parameter.kind.name for parameter in signature.parameters.values()}
        found |= {f"output {field}" for field in signature.output_fields}
        found |= {f"input {name}" for name in TINY[name].inputs()}
    return found


def test_promised_classes_are_covered():
    classes = {tiny.pipeline_class for tiny in TINY.values()}
    assert len(classes) > 30
    for one_of in COVERED:
        assert classes & one_of, one_of


def test_edit_takes_pictures_of_different_sizes():
    images = TINY["qwen-image-edit-plus"].inputs()["image"]
    assert len({image.size for image in images}) == 2


def test_wan_has_two_transformers():
    assert "guidance_scale_2" in TINY["wan22-i2v"].inputs()
