# SPDX-License-Identifier: Apache-2.0
"""Names that an entry does not know, that are ours to set, or that are missing."""

from __future__ import annotations

from tests.server.broken_files import image_file, picture_array
from tests.server.cases.case import Case

FOX = {"prompt": "a fox"}


def _parameter(name: str, parameter: str, value: object, *words: str) -> Case:
    return Case(name, "pictures", FOX, words, {parameter: value})


CASES = (
    Case("unknown-input", "pictures", FOX | {"num_step": 3}, ("num_step",)),
    Case("unknown-input-case", "pictures", FOX | {"Height": 16}, ("Height",)),
    Case("reserved-generator", "pictures", FOX | {"generator": 7}, ("generator",)),
    Case("reserved-output-type", "pictures", FOX | {"output_type": "np"}, ("output_type",)),
    Case("reserved-callback", "pictures", FOX | {"callback_on_step_end": "f"}, ("callback",)),
    Case("load-time-input", "pictures", FOX | {"dtype": "float16"}, ("dtype",)),
    Case("input-of-another-entry", "pictures", FOX | {"image_bytes": b"x"}, ("image_bytes",)),
    Case("prompt-of-unconditional", "shapes", FOX, ("prompt",)),
    _parameter("parameter-unknown", "num_inference_step", 3, "num_inference_steps", "Did you mean"),
    _parameter("parameter-strange", "qqq", 3, "qqq", "Accepted", "guidance_scale"),
    _parameter("parameter-is-input", "height", 16, "height", "input tensor"),
    _parameter("parameter-seed", "seed", 7, "seed", "input tensor"),
    _parameter("parameter-text", "prompt", "a fox", "prompt", "input tensor"),
    _parameter("parameter-generator", "generator", "cuda", "generator", "reserved", "seed"),
    _parameter("parameter-output-type", "output_type", "np", "reserved", "output_format"),
    _parameter("parameter-return-dict", "return_dict", False, "reserved", "tensor of its own"),
    _parameter("parameter-callback", "callback_on_step_end", "f", "reserved", "callbacks"),
    _parameter("parameter-load-time", "dtype", "float16", "load-time", "config.pbtxt"),
    _parameter("parameter-load-time-wan", "boundary_ratio", "0.9", "load-time", "config.pbtxt"),
    _parameter("parameter-limit", "max_steps", 10**6, "load-time", "config.pbtxt"),
    Case(
        "no-ip-adapter",
        "pictures",
        FOX | {"ip_adapter_image": picture_array},
        ("ip_adapter_image", "unexpected"),
    ),
    Case("missing-image", "edits", FOX, ("image", "image_bytes", "not sent")),
    Case(
        "image-and-image-bytes",
        "edits",
        FOX | {"image": picture_array, "image_bytes": lambda: image_file("png")},
        ("image", "image_bytes", "one of them"),
    ),
    Case("missing-everything", "edits", {"seed": 1}, ("prompt",)),
    Case("missing-video", "clips", FOX, ("video", "video_bytes", "not sent")),
)
