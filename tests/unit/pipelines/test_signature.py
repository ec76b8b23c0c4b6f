# SPDX-License-Identifier: Apache-2.0
"""`__call__` -> the inputs and outputs of an entry."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.made_up import ClipPipeline, PicturePipeline, Tensor
from triton_diffusers.calls.outputs import OutputOptions, to_wire
from triton_diffusers.contract import FRAMES, IMAGES, MEDIA, OWN_INPUTS, OWN_OUTPUTS, WIRE, Kind
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.signature import (
    entry_inputs,
    entry_outputs,
    fit_networks,
    output_tensor,
    read_signature,
)

KINDS = {
    "prompt": Kind.TEXT,
    "prompt_2": Kind.TEXT,
    "negative_prompt": Kind.TEXT,
    "image": Kind.IMAGE,
    "mask_image": Kind.IMAGE,
    "height": Kind.INT,
    "width": Kind.INT,
    "num_inference_steps": Kind.INT,
    "timesteps": Kind.INTS,
    "guidance_scale": Kind.FLOAT,
    "control_scale": Kind.FLOATS,
    "clip": Kind.BOOL,
    "task": Kind.STRING,
    "mode": Kind.STRING,
    "original_size": Kind.INTS,
    "attention_kwargs": Kind.JSON,
    "latents": Kind.TENSOR,
    "num_images_per_prompt": Kind.INT,
}


def test_every_parameter_gets_its_kind() -> None:
    signature = read_signature(PicturePipeline)
    assert {name: p.kind for name, p in signature.parameters.items()} == KINDS
    assert signature.reserved == {
        "generator",
        "output_type",
        "return_dict",
        "callback_on_step_end",
    }


def test_details_of_parameters() -> None:
    parameters = read_signature(PicturePipeline).parameters
    assert parameters["task"].choices == ("draw", "paint")
    assert parameters["mode"].choices == ("fast", "good")
    assert parameters["original_size"].as_tuple
    assert parameters["timesteps"].always_list
    assert not parameters["control_scale"].always_list
    assert parameters["guidance_scale"].default == 7.5
    assert not any(p.required for p in parameters.values())


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_on_the_wire_or_says_that_it_is_not(kind: Kind) -> None:
    assert (kind in WIRE) == (kind not in (Kind.JSON, Kind.TENSOR))
    assert kind.value


def test_entry_inputs() -> None:
    signature = read_signature(PicturePipeline)
    inputs = {t.name: t for t in entry_inputs(signature)}
    on_wire = {n for n, kind in KINDS.items() if kind in WIRE}
    files = {f"{n}_bytes" for n, kind in KINDS.items() if kind in MEDIA}
    assert set(inputs) == on_wire | files | {t.name for t in OWN_INPUTS}
    assert all(t.optional for t in inputs.values())
    for name in on_wire:
        assert (inputs[name].data_type, inputs[name].dims) == WIRE[KINDS[name]]


def test_entry_of_a_video_pipeline() -> None:
    signature = read_signature(ClipPipeline)
    inputs = {t.name: t for t in entry_inputs(signature)}
    assert signature.parameters["video"].required
    assert inputs["video"].optional  # video_bytes will do
    assert inputs["video_bytes"].data_type == "TYPE_STRING"
    assert inputs["fps"].data_type == "TYPE_FP64"
    assert next(t.name for t in entry_outputs(signature)) == "frames"
    assert signature.modality == "video+text-to-video"


def test_entry_outputs() -> None:
    signature = read_signature(PicturePipeline)
    names = [t.name for t in entry_outputs(signature)]
    assert names == ["images", "nsfw_content_detected", *(t.name for t in OWN_OUTPUTS)]
    streamed = [t.name for t in entry_outputs(signature, decoupled=True)]
    assert streamed == [*names, "progress", "preview"]
    added = {t.name for t in entry_inputs(signature, decoupled=True)}
    assert added - {t.name for t in entry_inputs(signature)} == {"preview_every"}


@pytest.mark.parametrize(
    ("field", "output"),
    [("images", "images"), ("image", "images"), ("video", "frames"), ("videos", "frames")],
)
def test_pictures_and_video_have_one_name_on_the_wire(field: str, output: str) -> None:
    signature = read_signature(PicturePipeline)
    (found,) = dataclasses.fields(dataclasses.make_dataclass("MadeOutput", [(field, list)]))
    signature = dataclasses.replace(signature, output_fields={field: output_tensor(found)})
    assert entry_outputs(signature)[0] == {"images": IMAGES, "frames": FRAMES}[output]
    pictures = np.full((1, 2, 4, 6, 3) if output == "frames" else (1, 4, 6, 3), 0.5, np.float32)
    wire = to_wire({field: pictures}, signature.output_fields, OutputOptions(), None, [])
    np.testing.assert_array_equal(wire[output], np.full(pictures.shape, 128, np.uint8))


def test_masks_are_grey_and_other_pictures_are_not() -> None:
    modes = {n: p.file_mode for n, p in read_signature(PicturePipeline).parameters.items()}
    assert (modes["mask_image"], modes["image"]) == ("L", "RGB")


@pytest.mark.parametrize(
    ("component", "network", "parameter", "in_a_list"),
    [
        ("controlnet", "MultiControlNetModel", "image", True),
        ("controlnet", "SD3MultiControlNetModel", "image", True),
        ("controlnet", "ControlNetModel", "image", False),
        ("adapter", "MultiAdapter", "image", True),
        ("unet", "MultiControlNetModel", "image", False),
    ],
)
def test_several_networks_take_lists(
    component: str, network: str, parameter: str, in_a_list: bool
) -> None:
    pipeline = SimpleNamespace(**{component: type(network, (), {})()})
    fitted = fit_networks(read_signature(PicturePipeline), pipeline).parameters
    assert [n for n, p in fitted.items() if p.per_network] == ([parameter] if in_a_list else [])


def test_a_decoupled_entry_for_sound_has_no_previews() -> None:
    class AudioPipeline:
        def __call__(self, prompt: str | None = None) -> Any:
            return None

    signature = read_signature(AudioPipeline)
    assert signature.is_audio
    assert "progress" in {t.name for t in entry_outputs(signature, decoupled=True)}
    assert "preview" not in {t.name for t in entry_outputs(signature, decoupled=True)}
    assert entry_inputs(signature, decoupled=True) == entry_inputs(signature)


def test_a_required_tensor_cannot_be_served() -> None:
    class NeedsLatents:
        def __call__(self, latents: Tensor, prompt: str = "") -> Any: ...

    with pytest.raises(ConfigError, match="NeedsLatents cannot be served: it requires 'latents'"):
        read_signature(NeedsLatents)


def test_a_path_is_never_taken_from_a_request() -> None:
    class ReadsFiles:
        def __call__(self, prompt: str = "", font_path: str = "x.ttf") -> Any: ...

    assert read_signature(ReadsFiles).parameters["font_path"].kind is Kind.TENSOR
    assert "font_path" not in {t.name for t in entry_inputs(read_signature(ReadsFiles))}


def test_names_in_kwargs_are_not_parameters() -> None:
    class Open:
        def __call__(self, prompt: str = "", *args: Any, **kwargs: Any) -> Any: ...

    assert set(read_signature(Open).parameters) == {"prompt"}
