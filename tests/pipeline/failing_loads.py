# SPDX-License-Identifier: Apache-2.0
"""Loads that fail, each in this process, which must be a fresh one; prints what they say as JSON.

python -m tests.pipeline.failing_loads JSON   (cases as `load` takes them)
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError


def main(cases: str) -> None:
    print(json.dumps({name: load(**case) for name, case in json.loads(cases).items()}))


def load(
    model: str,
    pipeline_class: str = "DDPMPipeline",
    file_limit: int = 0,
    memory_limit: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Load an entry. Returns the refusal, and how many modules it made and leaves in memory.

    file_limit: bytes that a file may have. memory_limit: bytes that the process may take more.
    """
    from triton_diffusers.loading.load import load_pipeline
    from triton_diffusers.pipelines.classes import import_diffusers

    getattr(import_diffusers(), pipeline_class)  # some packages make modules when imported
    config = ServeConfig(model=model, pipeline_class=pipeline_class, **options)
    made = watch_modules()
    text = "loaded"
    with Limits(file_limit, memory_limit):
        try:
            load_pipeline(config, Path("/"), "cpu")
        except ConfigError as error:
            failure = error
            text = str(error)
    left = sum(module() is not None for module in made)  # `failure` is still held
    del failure
    return {"text": text, "made": len(made), "left": left}


def watch_modules() -> list[weakref.ref[Any]]:
    """Return a list that gets a reference to every module made from now on."""
    import torch

    made: list[weakref.ref[Any]] = []
    original = torch.nn.Module.__new__

    def note(cls: type, *args: Any, **kwargs: Any) -> Any:
        module = object.__new__(cls)
        made.append(weakref.ref(module))
        return module

    gc.collect()
    torch.nn.Module.__new__ = note
    assert original is not note
    return made


class Limits:
    """Limits of this process, lifted afterwards."""

    def __init__(self, file_bytes: int, more_memory: int) -> None:
        self._wanted: dict[int, int] = {}
        if file_bytes:
            self._wanted[resource.RLIMIT_FSIZE] = file_bytes
        if more_memory:
            status = Path("/proc/self/status").read_text().splitlines()
            used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
            self._wanted[resource.RLIMIT_DATA] = used + more_memory

    def __enter__(self) -> None:
        self._before = {which: resource.getrlimit(which) for which in self._wanted}
        for which, limit in self._wanted.items():
            resource.setrlimit(which, (limit, self._before[which][1]))

    def __exit__(self, *error: object) -> None:
        for which, limits in self._before.items():
            resource.setrlimit(which, limits)


if __name__ == "__main__":
    main(sys.argv[1])
