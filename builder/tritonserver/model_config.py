# SPDX-License-Identifier: Apache-2.0
"""What the configuration of a loaded model says of it, as Triton gives it out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.contract import INFO

ITEM_BYTES = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2}
ITEM_BYTES |= {"INT64": 8, "UINT64": 8, "FP64": 8}
"""Of an element on the wire; 4 for all others: an empty string is its length, four bytes."""

Config = Mapping[str, Any]
"""A model's configuration as JSON, as Triton completes it."""


@dataclass(frozen=True)
class Blank:
    """An input without meaning, for one that Triton does not let a request leave out."""

    name: str
    data_type: str
    shape: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """Return zeros; strings of no characters are zeros too."""
        return bytes(math.prod(self.shape) * ITEM_BYTES.get(self.data_type, 4))


def blanks(config: Config) -> list[Blank]:
    """Return what a request must send so that Triton hands it to the model."""
    return [
        Blank(
            tensor["name"],
            tensor["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"),
            tuple(max(1, int(size)) for size in tensor["dims"]),
        )
        for tensor in config.get("input", ())
        if not tensor.get("optional", False)
    ]


def instances(config: Config) -> int:
    """Return how many processes a loaded model has."""
    groups = config.get("instance_group", [])
    return sum(int(group["count"]) * max(1, len(group.get("gpus", []))) for group in groups)


def answers_probes(config: Config) -> bool:
    """Tell whether the model is an entry of ours, which answers probes with `info`."""
    outputs = {output["name"]: output["data_type"] for output in config.get("output", ())}
    return config.get("backend") == "python" and outputs.get(INFO.name) == INFO.data_type
