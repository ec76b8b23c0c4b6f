# SPDX-License-Identifier: Apache-2.0
"""A form's texts -> what the pipeline gets, where that needs no model."""

from __future__ import annotations

from typing import Any

import pytest

from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.uploads import read_texts
from triton_diffusers.gateway.schemas import ImageEdit
from triton_diffusers.gateway.settings import Settings

NO_MODEL: Model = None  # type: ignore[assignment]  # no field here is an input


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"0": "0.7", "10": "1"}, {"0": 0.7, "10": 1}),
        (
            {"on": "true", "no": "null", "many": ["1", "2"]},
            {"on": True, "no": None, "many": [1, 2]},
        ),
        (
            {"list": "[1, [2]]", "text": "a fox", "quoted": '"a"'},
            {"list": [1, [2]], "text": "a fox"},
        ),
        ({"word": "NaN", "empty": ""}, {"word": "NaN", "empty": ""}),
    ],
)
def test_an_object_sent_by_its_keys_holds_json(sent: dict[str, Any], read: dict[str, Any]) -> None:
    found = read_texts(NO_MODEL, {"thresholds": sent}, ImageEdit, Settings())["thresholds"]
    assert {name: found[name] for name in read} == read
    assert found.get("quoted", '"a"') == '"a"'
