# SPDX-License-Identifier: Apache-2.0
"""One input tensor -> one value of `__call__`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.made_up import PictureOutput, Task, loaded
from triton_diffusers.calls.values import json_object, json_value, pictures_of, read_media, value_of
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.signature import Parameter, read_signature

SIGNATURE = loaded().signature
CONFIG = loaded(max_input_pixels=10_000, max_input_pixels_in_all=15_000, max_prompt_chars=50).config


def _texts(*values: str | bytes) -> np.ndarray:
    return np.array([v.encode() if isinstance(v, str) else v for v in values], np.object_)


def _value(name: str, array: np.ndarray) -> Any:
    return value_of(SIGNATURE.parameters[name], array, CONFIG)


def test_one_text_is_plain_and_several_are_a_list() -> None:
    assert _value("prompt", _texts("a fox")) == "a fox"
    assert _value("prompt", _texts("a", "b")) == ["a", "b"]
    assert _value("prompt", _texts("")) == ""
    assert _value("prompt", _texts("\u00e9\U0001f98a")) == "\u00e9\U0001f98a"


@pytest.mark.parametrize("number", [0.1, 1e-300, -7.5, 1e300])
def test_numbers_arrive_exactly(number: float) -> None:
    assert _value("guidance_scale", np.array([number], np.float64)) == number


def test_kinds_of_numbers() -> None:
    assert _value("height", np.array([2**62], np.int64)) == 2**62
    assert _value("clip", np.array([True])) is True
    assert _value("timesteps", np.array([5], np.int64)) == [5]
    assert _value("timesteps", np.array([5, 3], np.int64)) == [5, 3]
    assert _value("control_scale", np.array([0.5])) == 0.5
    assert _value("control_scale", np.array([0.5, 0.7])) == [0.5, 0.7]
    assert _value("original_size", np.array([8, 9], np.int64)) == (8, 9)


def test_choices_become_members_of_their_enum() -> None:
    assert _value("task", _texts("paint")) is Task.PAINT
    assert _value("mode", _texts("fast")) == "fast"
    with pytest.raises(RequestError, match="'task': 'sing' is not one of draw, paint"):
        _value("task", _texts("sing"))


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("prompt", _texts(), "at least one"),
        ("prompt", _texts(b"\xff"), "UTF-8"),
        ("prompt", _texts("x" * 51), "51 characters; at most 50"),
        ("height", np.array([1, 2]), "exactly one"),
        ("guidance_scale", np.array([np.nan]), "finite"),
        ("control_scale", np.array([1.0, np.inf]), "finite"),
        ("timesteps", np.array([], np.int64), "at least one"),
    ],
)
def test_refusals(name: str, array: np.ndarray, words: str) -> None:
    with pytest.raises(RequestError, match=f"'{name}'.*{words}"):
        _value(name, array)


def _file(size: tuple[int, int] = (6, 4), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, 3 if mode == "L" else None).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(("channels", "sent"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pixels_become_pictures_of_the_mode_that_is_taken(
    channels: int, sent: str, mode: str
) -> None:
    array = np.arange(2 * 4 * 6 * channels, dtype=np.uint8).reshape(2, 4, 6, channels)
    images = pictures_of(array, "image", CONFIG, mode)
    assert [(i.mode, i.size) for i in images] == [(mode, (6, 4))] * 2
    expected = Image.fromarray(array[1].squeeze()).convert(mode)
    assert Image.fromarray(array[1].squeeze()).mode == sent
    np.testing.assert_array_equal(images[1], expected)


def test_ones_are_the_white_of_a_mask_that_has_nothing_brighter() -> None:
    for brightest, white in ((1, 255), (2, 2), (255, 255), (0, 0)):
        array = np.zeros((2, 4, 6, 1), np.uint8)
        array[1, 2, 3] = brightest
        value, _, _ = _media("mask_image", {"mask_image": array})
        assert [np.asarray(mask).max() for mask in value] == [0, white]
        image, _, _ = _media("image", {"image": array})
        assert np.asarray(image[1]).max() == brightest


def test_keys_that_are_numbers_arrive_as_numbers() -> None:
    class KeysPipeline:
        def __call__(
            self,
            by_default: dict = {0: 0.5},  # noqa: B006
            by_annotation: dict[int, float] | None = None,
            by_share: Mapping[float, str] | None = None,
            by_name: dict[str, int] | None = None,
        ) -> Any:
            return PictureOutput(images=[], nsfw_content_detected=None)

    found = read_signature(KeysPipeline).parameters
    assert json_value(found["by_default"], {"0": 0.7, "10": 1}) == {0: 0.7, 10: 1}
    assert json_value(found["by_annotation"], {"3": 0.7}) == {3: 0.7}
    assert json_value(found["by_share"], {"0.5": "a"}) == {0.5: "a"}
    assert json_value(found["by_name"], {"0": 1}) == {"0": 1}
    assert json_value(found["by_annotation"], {}) == {}
    for keys in ({"x": 1}, {"0.5": 1}, {"1": 1, "01": 2}):
        with pytest.raises(RequestError, match=r"'by_default': keys .*; send .* such as \"0\""):
            json_value(found["by_default"], keys)


def _media(name: str, inputs: dict[str, np.ndarray]) -> Any:
    return read_media(SIGNATURE.parameters[name], inputs, CONFIG)


def test_one_picture_is_plain_and_several_are_a_list() -> None:
    value, count, rate = _media("image", {"image": np.zeros((1, 4, 6, 3), np.uint8)})
    assert (value.size, count, rate) == ((6, 4), 1, None)
    files = _texts(_file((6, 4)), _file((9, 5)))
    value, count, _ = _media("image", {"image_bytes": files})
    assert ([i.size for i in value], count) == ([(6, 4), (9, 5)], 2)
    assert _media("image", {}) is None


def test_both_inputs_of_a_picture_are_refused() -> None:
    inputs = {"image": np.zeros((1, 4, 6, 3), np.uint8), "image_bytes": _texts(_file())}
    with pytest.raises(RequestError, match="'image' and 'image_bytes' were both sent"):
        _media("image", inputs)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"image": np.zeros((1, 101, 100, 3), np.uint8)}, "max_input_pixels "),
        ({"image": np.zeros((2, 90, 90, 3), np.uint8)}, "max_input_pixels_in_all"),
        ({"image_bytes": _texts(_file((101, 100)))}, "max_input_pixels "),
        ({"image_bytes": _texts(_file((90, 90)), _file((90, 90)))}, "max_input_pixels_in_all"),
    ],
)
def test_limits_of_pictures(inputs: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        _media("image", inputs)


def test_json() -> None:
    assert json_object(_texts('{"a": [1, null]}'), "extra", CONFIG) == {"a": [1, None]}
    with pytest.raises(RequestError, match="input 'extra': malformed JSON"):
        json_object(_texts("{"), "extra", CONFIG)


def test_an_integer_parameter_is_an_int() -> None:
    assert type(_value("height", np.array([8], np.int64))) is int
    assert isinstance(SIGNATURE.parameters["height"], Parameter)
