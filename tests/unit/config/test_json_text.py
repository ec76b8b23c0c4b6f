# SPDX-License-Identifier: Apache-2.0
"""JSON objects that callers and operators write."""

from __future__ import annotations

from typing import Any

import pytest

from triton_diffusers.config.json_text import read_json_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ('{"a": 0.1, "b": [1, null, true]}', {"a": 0.1, "b": [1, None, True]}),
        (' {"a": {"a": 1}} ', {"a": {"a": 1}}),
        ('{"\\u00e9": -9223372036854775808}', {"\u00e9": -(2**63)}),
    ],
)
def test_objects(text: str, value: Any) -> None:
    assert read_json_object(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "malformed JSON"),
        ("{", "malformed JSON"),
        ("{}{}", "malformed JSON"),
        ("[]", "expected a JSON object"),
        ("null", "expected a JSON object"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not"),
        ('{"a": 1e999}', "finite"),
        ('{"a": ' + "9" * 30 + "}", "64 bits"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"b": {"a": 1, "a": 2}}', "'a' stands twice"),
        ('{"a": ' + "[" * 50 + "]" * 50 + "}", "nested deeper"),
        ('{"a": ' + "[" * 100_000, "JSON"),
        ('{"a": ' + "9" * 5000 + "}", "integer"),
    ],
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        read_json_object(text)
    assert len(str(refused.value)) < 300
