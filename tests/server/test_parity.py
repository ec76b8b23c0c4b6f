# SPDX-License-Identifier: Apache-2.0
"""What a served entry returns is what plain diffusers returns, to the last bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.parity.fresh import call_fresh
from tests.parity.in_process import check_in_process
from tests.parity.plain import PlainCall
from tests.parity.run import Outcome, check
from tests.server.tiny_entries import ENTRIES
from tests.tiny import TINY, save
from triton_diffusers.pipelines.signature import read_signature

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

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

CLASS = "SanaImageToVideoPipeline"
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    entry.tiny: (name, {})
    for name, entry in ENTRIES.items()
    if not (entry.call or entry.options or TINY[entry.tiny].load_kwargs)
} | {
    "sana": ("two-threads", {"threads": 2}),
    "sana-image-to-video": ("sana-image", {"pipeline_class": CLASS}),
}
"""Pipeline -> its entry on the server that other tests share, which is loaded once for all, and
what is special about it."""
SERVED = (
    *SHARED,
    *("dance-diffusion", "deepfloyd-if-super-resolution", "dit", "flux2-klein", "kandinsky-prior"),
    *("kandinsky5-t2i", "qwen-image-controlnet", "stable-diffusion-gligen"),
    *("stable-diffusion-ldm3d", "stable-diffusion-two-controlnets", "unidiffuser"),
)
"""These go through a tritonserver, over both protocols: one at least of every kind of parameter, of
every kind that a test sends, alone and as a list, and of every output. The others are loaded and
called as a stub does it, in a process of their own; `scripts/parity.py --tiny` serves them all."""

FAILS_IN_DIFFUSERS = {"stable-diffusion-ldm3d": "Invalid mode for data type"}
"""LDM3D writes its depth as I;16 pictures, which Pillow 13 refuses: an error either way."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("entries")


def _tiny_call(name, folder) -> PlainCall:
    call_fresh(save, name, folder)
    return PlainCall(folder / name, TINY[name].inputs(), load_kwargs=TINY[name].load_kwargs)


@pytest.mark.parametrize("name", SERVED)
def test_output_is_identical(name, tiny_server):
    if name not in SHARED:
        _check(name, check(name, _tiny_call(name, tiny_server.models), tiny_server.repository))
        return
    entry, special = SHARED[name]
    tiny_server.load(entry)
    call = PlainCall(tiny_server.model(entry), TINY[name].inputs(), **special)
    _check(name, check(entry, call, tiny_server.repository, loaded=True))


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
    """Return the kinds of parameters, the outputs and the kinds of what tests send."""
    import diffusers

    found = set()
    for name in names:
        signature = read_signature(getattr(diffusers, TINY[name].pipeline_class))
        found |= {parameter.kind.name for parameter in signature.parameters.values()}
        found |= {f"output {field}" for field in signature.output_fields}
        found |= {
            f"sent {signature.parameters[key].kind.name} {isinstance(value, list)}"
            for key, value in TINY[name].inputs().items()
        }
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
