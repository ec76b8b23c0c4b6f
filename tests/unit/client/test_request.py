# SPDX-License-Identifier: Apache-2.0
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.request import build_inputs, without_extra
from triton_diffusers.contract import EXTRA, SEED, WIRE, Kind, Tensor

KINDS = {"prompt": Kind.TEXT, "height": Kind.INT, "guidance_scale": Kind.FLOAT, "image": Kind.IMAGE}
INPUTS = {name: Tensor(name, *WIRE[kind]) for name, kind in KINDS.items()}
INPUTS |= {t.name: t for t in (SEED, EXTRA, Tensor("image_bytes", "TYPE_STRING", (-1,)))}
ENTRY = ServedEntry("demo", INPUTS, {}, decoupled=False)


def extra_of(**keywords):
    return json.loads(build_inputs(ENTRY, keywords)["extra"][0])


def test_keywords_become_inputs_and_none_is_not_sent():
    arrays = build_inputs(
        ENTRY, {"prompt": "", "height": None, "guidance_scale": 0.1, "extra": None}
    )
    assert {name: a.tolist() for name, a in arrays.items()} == {
        "prompt": [b""],
        "guidance_scale": [0.1],
    }


def test_media_choose_their_form():
    picture = Image.new("RGB", (4, 3))
    assert build_inputs(ENTRY, {"image": picture})["image"].shape == (1, 3, 4, 3)
    assert build_inputs(ENTRY, {"image": b"file"})["image_bytes"].tolist() == [b"file"]
    assert build_inputs(ENTRY, {"image_bytes": "aGk="})["image_bytes"].tolist() == [b"aGk="]
    with pytest.raises(InvalidRequest, match="same input"):
        build_inputs(ENTRY, {"image": b"file", "image_bytes": b"other"})


def test_other_keywords_travel_in_extra():
    numbers = {"a": np.float64(0.5), "b": np.arange(2), "c": (1, [2, None]), "d": {"e": True}}
    assert extra_of(**numbers) == {"a": 0.5, "b": [0, 1], "c": [1, [2, None]], "d": {"e": True}}


@pytest.mark.parametrize("given", [{"a": 1}, '{"a": 1}', b'{"a": 1}'])
def test_an_explicit_extra_is_joined(given):
    assert extra_of(extra=given, b=2) == {"a": 1, "b": 2}
    with pytest.raises(InvalidRequest, match="'a'"):
        extra_of(extra=given, a=2)


def test_an_empty_extra_is_not_sent():
    assert build_inputs(ENTRY, {"extra": {}}) == {}


@pytest.mark.parametrize("given", ["{", "[1]", 5, "null", ["a"], "[" * 100_000])
def test_an_extra_that_is_no_object_is_refused(given):
    with pytest.raises(InvalidRequest, match="extra"):
        extra_of(extra=given)


@pytest.mark.parametrize(
    "value", [print, math.nan, math.inf, b"x", {1j: 1}, {"a": object()}, Image.new("L", (2, 2))]
)
def test_what_json_cannot_carry_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"'imge'.*Did you mean 'image'"):
        extra_of(imge=value)


def test_a_loop_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidRequest, match="'a'"):
        extra_of(a=loop)


def test_reserved_names_say_what_to_send():
    with pytest.raises(InvalidRequest, match="send 'seed' instead"):
        extra_of(generator=object())


@pytest.mark.parametrize(
    ("refusal", "worded"),
    [
        ("input 'extra': argument 'sead' is not known", "argument 'sead' is not known"),
        ("input 'extra': 'x' is reserved", "argument 'x' is reserved"),
        ("input 'seed': too large", "input 'seed': too large"),
    ],
)
def test_a_refused_keyword_is_not_called_extra(refusal, worded):
    error = without_extra(InvalidRequest(refusal, "400"), {"sead": 1, "extra": None})
    assert (str(error), error.status) == (worded, "400")
    assert str(without_extra(InvalidRequest(refusal), {"extra": {"sead": 1}})) == refusal


def test_an_entry_without_extra_knows_only_its_inputs():
    bare = ServedEntry("other", {"prompt": INPUTS["prompt"]}, {}, decoupled=False)
    with pytest.raises(InvalidRequest, match=r"'promt' is not known to other.*'prompt'"):
        build_inputs(bare, {"promt": "x"})
    with pytest.raises(InvalidRequest, match="'a' is not known to other"):
        build_inputs(bare, {"extra": {"a": 1}})


def test_the_helper_needs_no_torch():
    code = (
        "import sys, triton_diffusers.client as c\n"
        "c.DiffusersClient('localhost:1', 'demo', 'http').close()\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'av', 'soundfile', 'scipy'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")
