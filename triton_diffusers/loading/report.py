# SPDX-License-Identifier: Apache-2.0
"""What loading a pipeline took: seconds and bytes of each component, for the log and for `info`."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton_diffusers.quantization.weight_bytes import tensor_bytes

LOADED = ("Loaded ", " as ")
"""How diffusers begins and goes on when it tells, at level INFO, that a component is loaded."""
LOADER = "diffusers.pipelines.pipeline_utils"


@dataclass(frozen=True)
class ComponentLoad:
    """One component; seconds is 0.0 for one that was handed over already loaded."""

    name: str
    class_name: str
    seconds: float
    bytes: int
    dtype: str
    """Of most of its weights; "" for a component without weights."""


@dataclass(frozen=True)
class LoadReport:
    """A loaded pipeline: its components, the largest first."""

    components: tuple[ComponentLoad, ...]
    seconds: float
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return what `info` shows."""
        return {
            "seconds": round(self.seconds, 3),
            "bytes": self.bytes,
            "components": {
                c.name: {
                    "class": c.class_name,
                    "seconds": round(c.seconds, 3),
                    "bytes": c.bytes,
                    "dtype": c.dtype,
                }
                for c in self.components
            },
        }


class LoadTimes(logging.Filter):
    """When each component was loaded, from what diffusers tells its log; keeps it from the log."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level
        self.started = self._last = time.monotonic()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def filter(self, record: logging.LogRecord) -> bool:
        """Note a component that was loaded; let pass what would have been logged without us."""
        text = record.getMessage()
        if text.startswith(LOADED[0]) and LOADED[1] in text:
            now = time.monotonic()
            self.seconds[text.removeprefix(LOADED[0]).split()[0]] += now - self._last
            self._last = now
        return record.levelno >= self._level

    def report(self, pipeline: Any) -> LoadReport:
        """Describe the loaded pipeline; the total goes up to now."""
        return describe(pipeline, self.seconds, time.monotonic() - self.started)


@contextmanager
def timed_loading() -> Iterator[LoadTimes]:
    """Note how long each component takes, around one from_pretrained()."""
    logger = logging.getLogger(LOADER)
    before = logger.level
    times = LoadTimes(logger.getEffectiveLevel())
    logger.setLevel(logging.INFO)
    logger.addFilter(times)
    try:
        yield times
    finally:
        logger.removeFilter(times)
        logger.setLevel(before)


def describe(pipeline: Any, seconds: Mapping[str, float], total: float) -> LoadReport:
    """Return the report of a loaded pipeline. seconds: of each component, by name."""
    found = []
    for name, component in pipeline.components.items():
        if component is not None:
            size, dtype = _weights(component)
            class_name = type(component).__name__
            found.append(ComponentLoad(name, class_name, seconds.get(name, 0.0), size, dtype))
    found.sort(key=lambda c: (-c.bytes, c.name))
    return LoadReport(tuple(found), total, sum(c.bytes for c in found))


def _weights(component: Any) -> tuple[int, str]:
    """Return the bytes of a module's parameters and buffers, tied ones once, and their dtype."""
    import torch

    sizes: Counter[str] = Counter()
    if isinstance(component, torch.nn.Module):
        for tensor in {id(t): t for t in [*component.parameters(), *component.buffers()]}.values():
            sizes[str(tensor.dtype).removeprefix("torch.")] += tensor_bytes(tensor)
    return sum(sizes.values()), sizes.most_common(1)[0][0] if sizes else ""
