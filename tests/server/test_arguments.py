# SPDX-License-Identifier: Apache-2.0
"""What the caller sends is what the pipeline gets: exactly that, and nothing else."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image

from tests.parity.served import PROTOCOLS
from tests.server.tiny_entries import ENTRIES, SMALL, differ
from tests.server.wire import connect, infer, post
from tests.tiny import TINY

PROMPT = "a red fox in the snow"
CALL = {"prompt": PROMPT, **SMALL}


def test_floats_act_exactly(tiny_server):
    tiny_server.same("pictures", **CALL, negative_prompt="dark", guidance_scale=0.1 + 0.2, eta=0.1)
    tiny_server.same("depths", image=_picture(), **_depth(), ensemble_size=3)


def test_lists_of_floats_arrive_exactly(tiny_server):
    sigmas = [1.0, 0.7, 0.1]
    result = tiny_server.same("guided", prompt=PROMPT, height=64, width=64, sigmas=sigmas)
    assert result.info["arguments"]["sigmas"] == sigmas


def test_no_negative_prompt_is_not_an_empty_one(tiny_server):
    call = {"prompt": PROMPT, "height": 64, "width": 96, "num_inference_steps": 2}
    call["true_cfg_scale"] = 2.0
    without = tiny_server.plain("guided", call)
    empty = tiny_server.plain("guided", call | {"negative_prompt": ""})
    assert differ(without, empty)
    tiny_server.check("guided", without, **call)
    tiny_server.check("guided", without, **call, negative_prompt=None)
    tiny_server.check("guided", empty, **call, negative_prompt="")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_invented(tiny_server, protocol):
    sent = tiny_server.ask("pictures", protocol, **CALL).info["arguments"]
    assert sent == SMALL
    entry = tiny_server.ask("defaults", protocol, prompt=PROMPT).info["arguments"]
    assert entry == SMALL | {"guidance_scale": 2.5}


def test_what_is_left_out_has_the_pipelines_own_default(tiny_server):
    tiny_server.same("pictures", prompt=PROMPT, num_inference_steps=2)
    tiny_server.same("pictures", prompt=PROMPT, height=32, width=48)


def test_entry_wins_over_defaults_and_request_over_entry(tiny_server):
    entry = ENTRIES["defaults"].call
    expected = tiny_server.plain("defaults", {"prompt": PROMPT, **entry})
    tiny_server.check("defaults", expected, prompt=PROMPT)
    changes = {"guidance_scale": 4.0, "width": 32, "negative_prompt": "a green field"}
    changed = tiny_server.plain("defaults", {"prompt": PROMPT, **entry, **changes})
    result = tiny_server.check("defaults", changed, prompt=PROMPT, **changes)
    assert result.arrays["images"].shape == (1, 32, 32, 3)


def test_json_parameters_travel_in_extra(tiny_server):
    call = {"image": _picture(), **_depth(), "ensemble_size": 3}
    mean = {"ensembling_kwargs": {"reduction": "mean"}}
    expected = tiny_server.plain("depths", call | mean)
    assert differ(expected, tiny_server.plain("depths", call))
    tiny_server.check("depths", expected, **call, **mean)
    tiny_server.check("depths", expected, **call, extra=mean)
    tiny_server.check("depths", expected, **call, extra=json.dumps(mean))


def test_attention_kwargs(tiny_server):
    call = {"prompt": PROMPT, "height": 64, "width": 64, "num_inference_steps": 1}
    tiny_server.same("guided", **call, attention_kwargs={"scale": 0.5})


def test_thread_count_of_the_entry_reaches_the_call(tiny_server):
    call = TINY["sana"].inputs()
    two = tiny_server.plain("two-threads", call, threads=2)
    # other sums in another order: this pipeline shows how many threads there were
    assert differ(two, tiny_server.plain("two-threads", call, threads=1))
    tiny_server.check("two-threads", two, **call)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_requested_outputs_come_back(tiny_server, protocol):
    tiny_server.load("pictures")
    module = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    inputs = {"prompt": [PROMPT], **{n: [v] for n, v in SMALL.items()}, "seed": [5]}
    with connect(tiny_server.triton, protocol) as client:
        outputs = [module.InferRequestedOutput("seed")]
        found = infer(client, protocol, "pictures", inputs, outputs=outputs)
    assert {name: array.tolist() for name, array in found.items()} == {"seed": [5]}


def test_generate_endpoint(tiny_server):
    call = CALL | {"negative_prompt": "", "guidance_scale": 0.1 + 0.2}
    expected = tiny_server.plain("pictures", call)["images"]
    tiny_server.load("pictures")
    body = call | {"seed": 7, "output_format": "png", "output_base64": True}
    status, text = post(tiny_server.triton, "models/pictures/generate", body)
    assert status == 200, text
    answer = json.loads(text)
    picture = Image.open(io.BytesIO(base64.b64decode(answer["media"])))
    np.testing.assert_array_equal(np.asarray(picture), expected[0])
    assert answer["seed"] == 7
    assert json.loads(answer["info"])["arguments"]["guidance_scale"] == 0.1 + 0.2


def test_generate_endpoint_takes_lists(tiny_server):
    call = SMALL | {"prompt": [PROMPT, "a kite"], "negative_prompt": ["dark", ""]}
    expected = tiny_server.plain("pictures", call, (3, 4))["images"]
    tiny_server.load("pictures")
    body = call | {"seed": [3, 4], "output_format": "png", "output_base64": True}
    status, text = post(tiny_server.triton, "models/pictures/generate", body)
    assert status == 200, text
    files = [base64.b64decode(file) for file in json.loads(text)["media"]]
    found = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
    np.testing.assert_array_equal(np.stack(found), expected)


def _picture() -> Image.Image:
    rng = np.random.default_rng(3)
    return Image.fromarray(rng.integers(0, 256, (32, 48, 3), np.uint8))


def _depth() -> dict:
    return {"num_inference_steps": 2, "processing_resolution": 0}
