# SPDX-License-Identifier: Apache-2.0
"""Wan's two load-time settings, and the names and classes of SANA-Video."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tests.parity.compare import differences
from tests.parity.plain import PlainCall, class_of, run_plain
from tests.parity.served import PROTOCOLS
from tests.server.tiny_entries import differ
from tests.server.wire import post
from tests.tiny.media import draw_picture
from triton_diffusers.client import InvalidRequest

WAN = {
    "prompt": "a kite over a field",
    "height": 16,
    "width": 32,
    "num_frames": 5,
    "num_inference_steps": 4,
    "guidance_scale_2": 2.0,
    "max_sequence_length": 32,
}
SANA = {
    "prompt": "a kite over a field",
    "height": 32,
    "width": 64,
    "num_inference_steps": 2,
    "max_sequence_length": 32,
    "use_resolution_binning": False,
}
UNIPC = ("UniPCMultistepScheduler", {"flow_shift": 5.5})


def test_wan_boundary_and_shift(tiny_server):
    expected = tiny_server.plain(
        "wan-set", WAN, load_kwargs={"boundary_ratio": 0.3}, scheduler=UNIPC
    )
    tiny_server.check("wan-set", expected, **WAN)


def test_wan_boundary_and_shift_matter(tiny_server):
    ratio = {"boundary_ratio": 0.3}
    both = tiny_server.plain("wan-set", WAN, load_kwargs=ratio, scheduler=UNIPC)
    assert differ(both, tiny_server.plain("wan-set", WAN, load_kwargs=ratio))
    assert differ(both, tiny_server.plain("wan-set", WAN, scheduler=UNIPC))


def test_wan_shift_makes_any_scheduler_unipc(tiny_server, tmp_path):
    model = tmp_path / "euler"
    shutil.copytree(tiny_server.model("wan"), model)
    euler = "FlowMatchEulerDiscreteScheduler"
    index = json.loads((model / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", euler]
    (model / "model_index.json").write_text(json.dumps(index))
    config = {"_class_name": euler, "num_train_timesteps": 1000, "shift": 1.0}
    (model / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    rebuilt = run_plain(PlainCall(model, WAN, scheduler=UNIPC)).arrays
    assert differ(rebuilt, run_plain(PlainCall(model, WAN)).arrays)
    tiny_server.repository.add("wan-euler", model, ["--flow-shift", "5.5"])
    for protocol in PROTOCOLS:
        result = tiny_server.repository.call("wan-euler", protocol, **WAN, seed=7)
        assert differences(rebuilt, result.arrays) == []


def test_wan_without_settings_keeps_its_scheduler(tiny_server):
    tiny_server.same("wan", **WAN)


@pytest.mark.parametrize("name", ["boundary_ratio", "flow_shift"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("entry", ["wan", "wan-set"])
def test_wan_settings_are_refused_in_a_request(tiny_server, entry, protocol, name):
    with pytest.raises(InvalidRequest, match=f"{name}.*load-time setting"):
        tiny_server.ask(entry, protocol, **WAN, **{name: 0.5})


@pytest.mark.parametrize("name", ["boundary_ratio", "flow_shift"])
def test_wan_settings_are_refused_by_generate(tiny_server, name):
    tiny_server.load("wan")
    body = WAN | {name: 0.5, "output_format": "mp4", "output_base64": True}
    status, text = post(tiny_server.triton, "models/wan/generate", body)
    assert status == 400
    assert "load-time setting" in json.loads(text)["error"]


def test_sana_video_takes_num_frames(tiny_server):
    expected = tiny_server.plain("sana", SANA | {"frames": 9})
    assert expected["frames"].shape[:2] == (1, 9)
    result = tiny_server.check("sana", expected, **SANA, num_frames=9)
    assert result.info["arguments"]["frames"] == 9
    tiny_server.check("sana", expected, **SANA, frames=9)


def test_sana_video_refuses_both_names(tiny_server):
    for protocol in PROTOCOLS:
        with pytest.raises(InvalidRequest, match="'frames' and 'num_frames' are the same"):
            tiny_server.ask("sana", protocol, **SANA, frames=9, num_frames=9)


def test_sana_image_to_video_from_the_same_components(tiny_server):
    assert class_of(tiny_server.model("sana-image")) == "SanaVideoPipeline"
    call = SANA | {"image": draw_picture(3, 64, 32)}
    expected = tiny_server.plain(
        "sana-image", call | {"frames": 5}, pipeline_class="SanaImageToVideoPipeline"
    )
    result = tiny_server.check("sana-image", expected, **call, num_frames=5)
    assert result.info["pipeline_class"] == "SanaImageToVideoPipeline"
    assert np.ptp(result.arrays["frames"]) > 0
