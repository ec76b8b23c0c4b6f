# SPDX-License-Identifier: Apache-2.0
"""How much a call asks for in all, and that what model cards ask for is not too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from tests.unit.made_up import ClipPipeline, PicturePipeline
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.calls.limits import (
    SMALL_SIZE,
    USUAL_SIZE,
    Workload,
    check_area,
    check_ranges,
    check_work,
    read_work,
)
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, RequestError
from triton_diffusers.pipelines.signature import read_signature

CONFIG = ServeConfig(model="m")
DOCUMENTED = {
    "Qwen/Qwen-Image": Workload(50, 928, 1664, 1, 1),
    "Qwen/Qwen-Image, 2048, four": Workload(50, 2048, 2048, 1, 4),
    "Tongyi-MAI/Z-Image-Turbo": Workload(9, 1024, 1024, 1, 1),
    "Wan-AI/Wan2.2-T2V-A14B": Workload(50, 720, 1280, 81, 1),
    "Wan-AI/Wan2.2-T2V-A14B, four": Workload(50, 720, 1280, 81, 4),
    "Wan-AI/Wan2.2-TI2V-5B": Workload(50, 704, 1280, 121, 1),
    "stable-diffusion-v1-5": Workload(50, 512, 512, 1, 64),
    "SDXL": Workload(50, 1024, 1024, 1, 16),
    "FLUX.1-dev": Workload(50, 2048, 2048, 1, 1),
    "Sana 4K": Workload(20, 4096, 4096, 1, 1),
    "HunyuanVideo": Workload(50, 720, 1280, 129, 1),
    "HunyuanVideo 1.5": Workload(50, 720, 1280, 121, 2),
    "LTX-Video": Workload(50, 704, 1216, 257, 1),
    "LTX-2": Workload(40, 1024, 1536, 121, 1),
    "CogVideoX 1.5": Workload(50, 768, 1360, 161, 1),
    "Mochi": Workload(64, 480, 848, 163, 1),
    "Allegro": Workload(100, 720, 1280, 88, 1),
    "Cosmos": Workload(36, 704, 1280, 121, 1),
    "SkyReels V2, 30 s": Workload(50, 544, 960, 737, 1),
    "DDPM": Workload(1000, *SMALL_SIZE, 1, 64),
}


@pytest.mark.parametrize("name", list(DOCUMENTED))
def test_documented_settings_pass(name: str) -> None:
    work = DOCUMENTED[name]
    check_work(work, CONFIG)
    check_area(replace(work, sized_by=""), CONFIG, read_signature(PicturePipeline))
    check_ranges(
        {
            "num_inference_steps": work.steps,
            "height": work.height,
            "width": work.width,
            "num_frames": work.frames,
            "num_images_per_prompt": work.outputs,
        },
        CONFIG,
    )


def test_each_limit_alone_may_be_reached_but_not_all_together() -> None:
    check_work(Workload(CONFIG.max_steps, 4096, 4096, 1, 1), CONFIG)
    with pytest.raises(
        RequestError, match=r"8389 megapixel-steps in all .*at most 8000 .*max_work"
    ):
        check_work(Workload(500, 4096, 4096, 1, 1), ServeConfig(model="m", max_work=8000))
    with pytest.raises(RequestError, match="50 steps x 1280 x 720 pixels x 81 frames x 8 outputs"):
        check_work(Workload(50, 720, 1280, 81, 8), CONFIG)


@pytest.mark.parametrize(
    ("kwargs", "outputs", "expected"),
    [
        ({}, None, Workload(50, *USUAL_SIZE, 1, 1)),
        ({"height": 64}, 1, Workload(50, 64, USUAL_SIZE[1], 1, 1)),
        ({"height": 64, "width": 32}, 3, Workload(50, 64, 32, 1, 3)),
        ({"num_inference_steps": 7}, 1, Workload(7, *USUAL_SIZE, 1, 1)),
        ({"timesteps": [3, 2, 1]}, 1, Workload(3, *USUAL_SIZE, 1, 1)),
        ({"num_inference_steps": None}, 1, Workload(1, *USUAL_SIZE, 1, 1)),
        ({"image": Image.new("RGB", (30, 20))}, 1, Workload(50, *USUAL_SIZE, 1, 1)),
        ({"image": [Image.new("RGB", (3, 2))] * 5}, None, Workload(50, *USUAL_SIZE, 1, 5)),
        (
            {"mask_image": [Image.new("L", (3, 2)), Image.new("L", (2000, 1500))]},
            1,
            Workload(50, 1500, 2000, 1, 1),
        ),
    ],
)
def test_work_of_pictures(kwargs: dict[str, Any], outputs: int | None, expected: Workload) -> None:
    assert read_work(kwargs, read_signature(PicturePipeline), outputs) == expected


def test_layers_and_members_of_an_ensemble_multiply_the_work() -> None:
    kwargs = {"layers": 4, "ensemble_size": 3}
    expected = Workload(50, *USUAL_SIZE, 1, 2 * 4 * 3)
    assert read_work(kwargs, read_signature(PicturePipeline), 2) == expected


def test_work_of_videos() -> None:
    signature = read_signature(ClipPipeline)
    default = read_work({}, signature, 1)
    assert default.frames > 1
    assert read_work({"num_frames": 200}, signature, 1).frames == 200


def test_an_entry_whose_own_defaults_are_too_much_is_refused() -> None:
    signature = read_signature(PicturePipeline)
    config = ServeConfig(model="m", max_work=40)
    with pytest.raises(
        ConfigError, match="'max_work': a request for one output is more already: 52 "
    ):
        check_call_kwargs(config, signature)
    given = ServeConfig(model="m", max_work=40, diffusers_call_kwargs={"height": 512, "width": 512})
    check_call_kwargs(given, signature)


class UpscalePipeline:
    def __call__(self, image: Image.Image = None, num_inference_steps: int = 5) -> Any: ...


class EditPipeline:
    def __call__(self, image: Image.Image = None, height: int | None = None) -> Any:
        height = height or self.default_sample_size


UpscalePipeline.__name__ = "StableDiffusionUpscalePipeline"
PICTURE = Image.new("RGB", (4000, 3000))
VIDEO = torch.zeros(1, 2, 3, 1500, 2000)


@pytest.mark.parametrize(
    ("cls", "kwargs", "size", "sized_by"),
    [
        (PicturePipeline, {"image": PICTURE}, (4000, 3000), "image"),
        (PicturePipeline, {"image": PICTURE, "height": 8, "width": 16}, (16, 8), ""),
        (PicturePipeline, {"mask_image": [PICTURE]}, (4000, 3000), "mask_image"),
        (PicturePipeline, {}, USUAL_SIZE, None),
        (ClipPipeline, {"video": [PICTURE] * 3}, (4000, 3000), "video"),
        (PicturePipeline, {"image": [[PICTURE], [PICTURE]]}, (4000, 3000), "image"),
        (ClipPipeline, {"video": [VIDEO]}, (2000, 1500), "video"),
        (ClipPipeline, {"video": VIDEO}, (2000, 1500), "video"),
        (UpscalePipeline, {"image": PICTURE}, (16000, 12000), "image"),
        (EditPipeline, {"image": PICTURE}, USUAL_SIZE, None),
    ],
)
def test_outputs_that_are_too_large_are_refused_whatever_their_size_comes_from(
    cls: type, kwargs: dict[str, Any], size: tuple[int, int], sized_by: str | None
) -> None:
    signature = read_signature(cls)
    work = read_work(kwargs, signature, 1)
    assert ((work.width, work.height), work.sized_by) == (size, sized_by)
    pixels = size[0] * size[1]
    check_area(work, ServeConfig(model="m", max_pixels=pixels), signature)
    if sized_by is not None:
        told = "'height' x 'width'"
        if sized_by:
            told = f"input '{sized_by}': .* {size[0]} x {size[1]} pixels .*send a smaller picture"
        with pytest.raises(RequestError, match=told) as refused:
            check_area(work, ServeConfig(model="m", max_pixels=pixels - 1), signature)
        assert "max_pixels" in str(refused.value)
