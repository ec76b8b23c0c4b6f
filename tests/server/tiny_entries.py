# SPDX-License-Identifier: Apache-2.0
"""Tiny pipelines on one server, each loaded when first asked for, beside plain diffusers.

conftest.py hands the fixture on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from builder.tritonserver.server import Server
from tests import tiny
from tests.parity.compare import differences
from tests.parity.fresh import call_fresh
from tests.parity.plain import PlainCall, run_plain
from tests.parity.served import PROTOCOLS, Repository
from triton_diffusers.client.result import Result

SMALL = {"height": 32, "width": 48, "num_inference_steps": 2}


@dataclass(frozen=True)
class Entry:
    """A tiny pipeline and its load-time options."""

    tiny: str
    call: dict[str, Any] = field(default_factory=dict)
    """diffusers_call_kwargs."""
    options: tuple[str, ...] = ()


ENTRIES = {
    "pictures": Entry("stable-diffusion"),
    "defaults": Entry(
        "stable-diffusion", SMALL | {"guidance_scale": 2.5, "negative_prompt": "blurry"}
    ),
    "listed": Entry("stable-diffusion", SMALL | {"negative_prompt": ["blurry", "dark"]}),
    "guided": Entry("qwen-image"),
    "depths": Entry("marigold-depth"),
    "repaints": Entry("stable-diffusion-img2img"),
    "edits": Entry("qwen-image-edit-plus"),
    "inpaints": Entry("stable-diffusion-inpaint"),
    "varies": Entry("stable-diffusion-image-variation"),
    "flux": Entry("flux"),
    "streamed-repaints": Entry("stable-diffusion-img2img", {}, ("--decoupled",)),
    "wan": Entry("wan22-t2v"),
    "wan-set": Entry("wan22-t2v", {}, ("--boundary-ratio", "0.3", "--flow-shift", "5.5")),
    "wan-streamed": Entry("wan22-t2v", {}, ("--decoupled", "--max-steps", "100000")),
    "wan-narrow": Entry("wan22-t2v", {}, ("--max-queue", "1")),
    "wan-starts": Entry("wan22-i2v"),
    "clips": Entry("wan-v2v"),
    "ltx": Entry("ltx"),
    "ltx2": Entry("ltx2"),
    "long-clips": Entry("ltx-long"),
    "sounds": Entry("stable-audio-variation"),
    "music": Entry("audioldm2"),
    "two-threads": Entry("sana", {}, ("--cpu-threads", "2")),
    "sana": Entry("sana-video"),
    "sana-image": Entry("sana-video", {}, ("--pipeline-class", "SanaImageToVideoPipeline")),
}


MOST_LOADED = 12
"""Each is a process of half a gigabyte."""


class TinyServer:
    """The server and its entries; everything that is compared goes over both protocols."""

    def __init__(self, folder: Path):
        self.repository = Repository(folder / "server")
        self.models = folder / "models"
        self._loaded: dict[str, None] = {}
        """Those that are loaded, the one asked for last at the end."""

    @property
    def triton(self) -> Server:
        return self.repository.server

    def model(self, entry: str) -> Path:
        """The pipeline of an entry, built once."""
        name = ENTRIES[entry].tiny
        if not (self.models / name).exists():
            call_fresh(tiny.save, name, self.models)
        return self.models / name

    def load(self, entry: str) -> None:
        if entry in self._loaded:
            self._loaded[entry] = self._loaded.pop(entry)
            return
        while len(self._loaded) >= MOST_LOADED:
            oldest = next(iter(self._loaded))
            del self._loaded[oldest]
            self.repository.remove(oldest)
        described = ENTRIES[entry]
        options = ["--device", "cpu", *described.options]
        if described.call:
            options += ["--diffusers-call-kwargs", json.dumps(described.call)]
        self.repository.add(entry, self.model(entry), options)
        self._loaded[entry] = None

    def ask(self, entry: str, protocol: str = "grpc", **inputs: Any) -> Result:
        """One call with the helper."""
        self.load(entry)
        return self.repository.call(entry, protocol, **inputs)

    def plain(
        self, entry: str, inputs: Mapping[str, Any], seeds: tuple[int, ...] = (7,), **changes: Any
    ) -> dict[str, np.ndarray]:
        """What plain diffusers returns for the arguments of `__call__`, in a fresh process."""
        return run_plain(PlainCall(self.model(entry), dict(inputs), seeds, **changes)).arrays

    def check(
        self, entry: str, expected: Mapping[str, np.ndarray], seed: Any = 7, **inputs: Any
    ) -> Result:
        """Assert that both protocols return exactly the expected arrays; return the last result."""
        for protocol in PROTOCOLS:
            result = self.ask(entry, protocol, seed=seed, **inputs)
            if found := differences(expected, result.arrays):
                raise AssertionError(f"{protocol}: {'; '.join(found)}")
        return result

    def same(self, entry: str, seed: Any = 7, **inputs: Any) -> Result:
        """Assert that the same arguments give the same arrays, served and with plain diffusers."""
        seeds = tuple(seed) if isinstance(seed, list) else (seed,)
        return self.check(entry, self.plain(entry, inputs, seeds), seed, **inputs)


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    made = TinyServer(tmp_path_factory.mktemp("tiny-server"))
    with made.repository:
        yield made


def differ(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Tell whether two results have the same shapes but other content: the argument mattered."""
    if shapes(one) != shapes(other):
        raise AssertionError(f"{shapes(one)} instead of {shapes(other)}")
    return any(not np.array_equal(one[name], other[name]) for name in one)


def shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}
