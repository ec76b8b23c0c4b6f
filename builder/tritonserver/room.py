# SPDX-License-Identifier: Apache-2.0
"""How many models load side by side: as many as the processors and the host's memory allow."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_diffusers.errors import ConfigError

AT_ONCE = 4
SHARE = 0.8
"""Of the memory that is free, what models that load together may need."""
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack"}


class Room:
    """Lets loads begin while there is room for them; one alone always may."""

    def __init__(self, repository: Path | None) -> None:
        self._repository = repository
        self._limit = max(2, min(AT_ONCE, os.cpu_count() or 1))
        self._loading: dict[str, int] = {}
        self._changed = threading.Condition()

    @contextmanager
    def for_load(self, name: str) -> Iterator[None]:
        """Wait until a model may load, and hold its place meanwhile."""
        size = weight_bytes(self._repository, name)
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size))
            self._loading[name] = size
        try:
            yield
        finally:
            with self._changed:
                del self._loading[name]
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        if not self._loading:
            return True
        from triton_diffusers.placement.host_memory import available_memory

        # what loads now may have taken its memory or not: it counts whole
        wanted = size + sum(self._loading.values())
        return len(self._loading) < self._limit and wanted <= available_memory() * SHARE


def weight_bytes(repository: Path | None, name: str) -> int:
    """Return the size of a model's weight files; what is not known is larger than any memory."""
    from builder.entries.config_pbtxt import parse_config, read_parameters
    from builder.entries.repository import read_config_text

    if repository is None:
        return UNKNOWN
    try:
        parameters = read_parameters(parse_config(read_config_text(repository / name)))
    except ConfigError:
        return 0  # it will be refused
    if "model" not in parameters:
        return 0  # none of ours
    model = parameters["model"]
    folder = repository / name / model
    if not folder.exists():
        from huggingface_hub.constants import HF_HUB_CACHE

        folder = Path(HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "snapshots"
    files = [folder] if folder.is_file() else folder.rglob("*")
    sizes = [file.stat().st_size for file in files if file.suffix in WEIGHTS and file.is_file()]
    return sum(sizes) if sizes else UNKNOWN


UNKNOWN = 1 << 62
