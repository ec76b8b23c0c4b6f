# SPDX-License-Identifier: Apache-2.0
"""Messages: what, where, the near miss, what is accepted."""

from __future__ import annotations

import pytest

from triton_diffusers.errors import ConfigError, RequestError, near_miss, one_line, unknown


def test_unknown_names_the_near_miss_and_what_is_accepted() -> None:
    text = unknown("input", "num_frame", "WanPipeline", ["num_frames", "height", "guidance_scale"])
    assert text == (
        "input 'num_frame' is not known to WanPipeline. Did you mean 'num_frames'? "
        "Accepted: guidance_scale, height, num_frames."
    )


def test_unknown_without_anything_accepted() -> None:
    assert unknown("model", "x", "the repository", []).endswith("Accepted: none.")


@pytest.mark.parametrize(("name", "hint"), [("hieght", "'height'"), ("zzz", "")])
def test_near_miss(name: str, hint: str) -> None:
    assert hint in near_miss(name, ["height", "width"])
    assert bool(near_miss(name, ["height", "width"])) == bool(hint)


def test_one_line_keeps_the_text_and_adds_the_type_of_foreign_errors() -> None:
    assert one_line(ConfigError("a\n  b")) == "a b"
    assert one_line(RequestError("a")) == "a"
    assert one_line(KeyError("unet")) == "KeyError: 'unet'"
    assert one_line(ValueError()) == "ValueError: "
