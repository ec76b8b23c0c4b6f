# SPDX-License-Identifier: Apache-2.0
"""A request's tensors -> the arguments of one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.made_up import ClipPipeline, loaded
from triton_diffusers.calls.arguments import Call, read_call, read_priority, refuse_parameters
from triton_diffusers.config.options import options
from triton_diffusers.errors import RequestError

PICTURE = np.zeros((1, 4, 6, 3), np.uint8)


def _tensor(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], str):
        return np.array([v.encode() for v in values], np.object_)
    return np.array(values)


def _call(pipeline: Any = None, **inputs: Any) -> Call:
    return read_call({k: _tensor(v) for k, v in inputs.items()}, pipeline or loaded())


def test_nothing_is_invented() -> None:
    call = _call(prompt="a fox")
    assert call.kwargs == {"prompt": "a fox"}
    assert len(call.seeds) == 1
    assert 0 <= call.seeds[0] < 2**32
    assert call.output.file_format == "tensor"


def test_an_empty_negative_prompt_is_not_none() -> None:
    assert _call(prompt="a", negative_prompt="").kwargs["negative_prompt"] == ""
    assert "negative_prompt" not in _call(prompt="a").kwargs


def test_precedence() -> None:
    entry = loaded(call_kwargs={"height": 64, "guidance_scale": 1.0, "original_size": [1, 2]})
    call = _call(entry, prompt="a", height=8)
    assert call.kwargs == {
        "prompt": "a",
        "height": 8,
        "guidance_scale": 1.0,
        "original_size": (1, 2),
    }


def test_extra_carries_none() -> None:
    entry = loaded(call_kwargs={"guidance_scale": 1.0})
    call = _call(entry, prompt="a", extra='{"guidance_scale": null, "negative_prompt": null}')
    assert call.kwargs == {"prompt": "a", "guidance_scale": None, "negative_prompt": None}


def test_null_beside_a_value_is_refused() -> None:
    with pytest.raises(RequestError, match="sent twice"):
        _call(prompt="a", guidance_scale=2.0, extra='{"guidance_scale": null}')


@pytest.mark.parametrize("value", ['"x"', "[1]", "3"])
def test_a_dictionary_is_a_dictionary(value: str) -> None:
    with pytest.raises(RequestError, match="send a JSON object"):
        _call(prompt="a", extra=f'{{"attention_kwargs": {value}}}')


def test_extra_carries_what_has_no_input() -> None:
    call = _call(prompt="a", extra='{"attention_kwargs": {"scale": 0.5}}')
    assert call.kwargs["attention_kwargs"] == {"scale": 0.5}


@pytest.mark.parametrize(
    ("negative", "expected"), [(["x"], ["x", "x"]), (["x", "y"], ["x", "y"]), (None, None)]
)
def test_negative_prompts_follow_the_prompts(negative: Any, expected: Any) -> None:
    inputs = {} if negative is None else {"negative_prompt": negative}
    call = _call(prompt=["a", "b"], **inputs)
    assert call.kwargs.get("negative_prompt") == expected


def test_the_entrys_negative_prompt_is_repeated() -> None:
    entry = loaded(call_kwargs={"negative_prompt": "blurry"})
    assert _call(entry, prompt=["a", "b"]).kwargs["negative_prompt"] == ["blurry", "blurry"]
    assert _call(entry, prompt="a").kwargs["negative_prompt"] == "blurry"


def test_seeds() -> None:
    assert _call(prompt="a", seed=7).seeds == [7]
    assert _call(prompt=["a", "b"], seed=[7, 8]).seeds == [7, 8]
    assert _call(prompt="a", num_images_per_prompt=2, seed=[1, 2]).seeds == [1, 2]
    assert _call(prompt="a", seed=2**63 - 1).seeds == [2**63 - 1]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"seed": -2}, "at least 0"),
        ({"seed": [1, 2]}, "2 seeds for 1 outputs"),
        ({"height": 0}, "'height': 0; send a number of at least 1"),
        ({"height": 10**6}, "'height'.*max_pixels"),
        ({"height": 16000, "width": 16000}, "'height' x 'width'.*max_pixels"),
        ({"num_inference_steps": 500_000}, "'num_inference_steps': 500000; at most 1000"),
        ({"num_images_per_prompt": 65}, "max_outputs"),
        ({"timesteps": list(range(1001))}, "'timesteps', elements: 1001; at most 1000"),
        ({"negative_prompt": ["a", "b"]}, "'negative_prompt' has 2 elements for 1 prompts"),
        ({"output_format": "mp4"}, "'mp4' is not known.*jpeg, png, tensor, webp"),
        ({"output_quality": 5}, "no effect"),
        ({"output_format": "jpeg", "output_quality": 0}, "1 to 100"),
        ({"output_base64": True}, "no effect"),
        ({"extra": '{"height": 8}'}, "'height' has an input of its own"),
        ({"extra": '{"hieght": 8}'}, "Did you mean 'height'"),
        ({"extra": '{"latents": [1]}'}, "JSON carries none"),
        ({"extra": '{"generator": 1}'}, "reserved: send 'seed'"),
        ({"extra": '{"dtype": "float16"}'}, "load-time setting"),
    ],
)
def test_refusals(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        _call(prompt="a", **inputs)


def test_a_missing_required_input_is_named_with_its_file() -> None:
    with pytest.raises(RequestError, match=r"'video' \(or 'video_bytes'\) is missing"):
        _call(loaded(ClipPipeline), prompt="a")


def test_limits_of_the_entry_hold() -> None:
    entry = loaded(ClipPipeline, max_frames=4)
    with pytest.raises(RequestError, match="'num_frames': 5; at most 4"):
        _call(entry, video=np.repeat(PICTURE, 4, 0), num_frames=5)
    with pytest.raises(RequestError, match="more than 4 frames"):
        _call(entry, video=np.repeat(PICTURE, 5, 0))


@pytest.mark.parametrize(("fps", "right"), [(8.0, True), (0.0, False), (-1.0, False), (1e9, False)])
def test_fps(fps: float, right: bool) -> None:
    entry = loaded(ClipPipeline)
    if right:
        assert _call(entry, video=PICTURE, fps=fps).output.fps == fps
        return
    with pytest.raises(RequestError, match="'fps'"):
        _call(entry, video=PICTURE, fps=fps)


@pytest.mark.parametrize("name", [option.name for option in options()])
def test_no_load_time_setting_in_a_request(name: str) -> None:
    with pytest.raises(RequestError, match="load-time setting"):
        refuse_parameters({name: "x"}, loaded().signature)


@pytest.mark.parametrize("name", sorted(loaded().signature.reserved))
def test_reserved_names_are_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(RequestError, match=f"'{name}' is reserved: "):
        refuse_parameters({name: "x"}, loaded().signature)


@pytest.mark.parametrize("name", sorted(loaded().signature.parameters))
def test_parameters_of_the_pipeline_are_tensors(name: str) -> None:
    with pytest.raises(RequestError, match="input tensor"):
        refuse_parameters({name: 1}, loaded().signature)


@pytest.mark.parametrize("parameters", [{}, {"queue_priority": 3}, {"probe": True}])
def test_parameters_that_are_no_arguments_are_fine(parameters: dict[str, Any]) -> None:
    refuse_parameters(parameters, loaded().signature)


@pytest.mark.parametrize("value", [1, "true", None])
def test_a_probe_is_true_or_nothing(value: Any) -> None:
    with pytest.raises(RequestError, match=r"request parameter 'probe': .*send true"):
        refuse_parameters({"probe": value}, loaded().signature)


@pytest.mark.parametrize("value", ["first", 1.5, True, None])
def test_a_priority_is_a_whole_number(value: Any) -> None:
    assert read_priority({}) == 0
    assert read_priority({"queue_priority": -2}) == -2
    with pytest.raises(RequestError, match=r"'queue_priority': .*send a whole number"):
        read_priority({"queue_priority": value})
