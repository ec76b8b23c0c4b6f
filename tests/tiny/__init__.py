# SPDX-License-Identifier: Apache-2.0
"""Real diffusers pipelines at tiny size with seeded random weights.

Importing this package loads neither torch nor diffusers; the builders do.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from tests.tiny.entry import TinyPipeline

__all__ = ["TINY", "TinyPipeline", "save"]


def _collect() -> dict[str, TinyPipeline]:
    """Every `PIPELINES` of this package's modules, by name."""
    found: dict[str, TinyPipeline] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "__main__":
            continue
        for entry in getattr(import_module(f"{__name__}.{module.name}"), "PIPELINES", ()):
            if entry.name in found:
                raise ValueError(f"two tiny pipelines are called {entry.name!r}")
            found[entry.name] = entry
    return found


TINY = _collect()


def save(name: str, folder: str | Path) -> Path:
    """Build one pipeline and write it to `folder`/`name`; returns that path."""
    path = Path(folder) / name
    TINY[name].build().save_pretrained(path, safe_serialization=True)
    return path
