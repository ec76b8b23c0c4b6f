# SPDX-License-Identifier: Apache-2.0
"""A model folder's weight files: sizes, dtypes and parameter counts, from file headers only."""

import json
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from triton_diffusers.errors import ConfigError

WEIGHT_FILE = re.compile(
    r"[^.]+?(?:\.(?P<variant>[^.]+?))?(?:-\d{5}-of-\d{5})?\.(?P<kind>safetensors|bin)"
)
MAX_HEADER = 100 * 2**20


@dataclass(frozen=True)
class Weights:
    """What one component holds on disk. `parameters` is 0 where no header tells."""

    size: int = 0
    parameters: int = 0
    dtypes: tuple[str, ...] = ()


def read_component(folder: Path, variant: str | None = None) -> Weights:
    """Return the weights that from_pretrained() would load from a component's folder."""
    files = [f for f in sorted(folder.glob("*")) if WEIGHT_FILE.fullmatch(f.name)]
    kinds = {
        kind: [f for f in files if _part(f, "kind") == kind] for kind in ("safetensors", "bin")
    }
    chosen = kinds["safetensors"] or kinds["bin"]
    wanted = [f for f in chosen if _part(f, "variant") == variant]
    chosen = wanted or [f for f in chosen if _part(f, "variant") is None] or chosen
    size = sum(f.stat().st_size for f in chosen)
    counts: Counter[str] = Counter()
    for file in chosen:
        if file.suffix == ".safetensors":
            counts += _count_parameters(file)
    return Weights(size, sum(counts.values()), tuple(name for name, _ in counts.most_common()))


def _count_parameters(file: Path) -> Counter[str]:
    """Return dtype -> number of parameters of a safetensors file."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, MAX_HEADER)))
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(f"{file} is not a readable safetensors file: {error}") from None
    counts: Counter[str] = Counter()
    for name, tensor in header.items():
        if name != "__metadata__":
            counts[tensor["dtype"]] += math.prod(tensor["shape"])
    return counts


def _part(file: Path, name: str) -> str | None:
    match = WEIGHT_FILE.fullmatch(file.name)
    return match[name] if match else None
