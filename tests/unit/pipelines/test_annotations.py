# SPDX-License-Identifier: Apache-2.0
"""Annotations in all their spellings."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Literal, Optional, Union

import pytest

from tests.unit.made_up import Image, Task, Tensor
from triton_diffusers.pipelines.annotations import read

SCOPE = {"Image": Image, "Tensor": Tensor, "Task": Task}
OPTIONAL_TEXTS = (
    str | list[str] | None,
    Optional[Union[str, list[str]]],  # noqa: UP007, UP045 - what is tested
    Union[str, typing.List[str], None],  # noqa: UP006, UP007 - what is tested
    "str | list[str] | None",
    "Optional[Union[str, List[str]]]",
    "typing.Optional[typing.Union[str, typing.List[str]]]",
)


@pytest.mark.parametrize("annotation", OPTIONAL_TEXTS, ids=str)
def test_text_or_list_of_texts(annotation: Any) -> None:
    shape = read(annotation, SCOPE | {"typing": typing})
    assert shape.scalars == {"str"}
    assert shape.has_list
    assert not shape.only_list
    assert not shape.nested


@pytest.mark.parametrize("annotation", [list[float], "List[float]", tuple[float, ...]], ids=str)
def test_only_a_list(annotation: Any) -> None:
    shape = read(annotation, SCOPE)
    assert shape.scalars == {"float"}
    assert shape.only_list


@pytest.mark.parametrize("annotation", [list[list[float]], "List[List[float]]"], ids=str)
def test_lists_of_lists(annotation: Any) -> None:
    assert read(annotation, SCOPE).nested


@pytest.mark.parametrize("annotation", [Image, list[Image], "Image | None", "PipelineImageInput"])
def test_pictures(annotation: Any) -> None:
    assert read(annotation, SCOPE).has_image


def test_a_name_that_cannot_be_imported_is_read_by_its_words() -> None:
    shape = read("Optional[List[torch.FloatTensor]]", {})
    assert shape.has_tensor
    assert shape.only_list


@pytest.mark.parametrize("annotation", [dict[str, Any], "dict[str, Any] | None", "Dict[str, int]"])
def test_mappings(annotation: Any) -> None:
    assert read(annotation, SCOPE | {"Any": Any}).has_dict


def test_choices() -> None:
    assert read(Literal["fast", "good"], SCOPE).choices == ("fast", "good")
    assert read(Task | None, SCOPE).choices == ("draw", "paint")
    assert read(Task, SCOPE).enum is Task


def test_tuples() -> None:
    assert read(tuple[int, int] | None, SCOPE).is_tuple
    assert not read(list[int] | tuple[int, int], SCOPE).is_tuple


def test_objects_and_nothing() -> None:
    assert read(SimpleObject, SCOPE).has_object
    assert read(inspect.Parameter.empty, SCOPE).is_empty
    assert read(Any, SCOPE).has_any


class SimpleObject:
    pass
