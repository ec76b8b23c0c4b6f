# SPDX-License-Identifier: Apache-2.0
"""A component's weight files: which are loaded, their sizes and dtypes, from file headers only."""

import json
import math
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from triton_diffusers.errors import ConfigError

WEIGHT_FILE = re.compile(
    r"(?P<stem>[^.]+?)(?:-\d{5}-of-\d{5})?(?:\.(?P<variant>[^.]+?))?(?:-\d{5}-of-\d{5})?"
    r"\.(?P<kind>safetensors|bin)"
)
STEMS = ("diffusion_pytorch_model", "model", "pytorch_model")
"""Names that from_pretrained() looks for; others, such as an adapter's, lie beside them."""
MAX_HEADER = 100 * 2**20


@dataclass(frozen=True)
class Weights:
    """What one component holds on disk. `counts` is empty where no header tells."""

    size: int = 0
    counts: tuple[tuple[str, int], ...] = ()
    """(dtype as safetensors spells it, number of parameters), most of them first."""

    @property
    def parameters(self) -> int:
        """The number of parameters, 0 where no header tells."""
        return sum(count for _, count in self.counts)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes, the most frequent first."""
        return tuple(name for name, _ in self.counts)


def read_component(folder: Path, variant: str | None = None) -> Weights:
    """Return the weights that from_pretrained() would load from a component's folder."""
    return read_files(*choose_files(folder, variant))


def read_files(*files: Path) -> Weights:
    """Return the weights that these files hold together."""
    counts: Counter[str] = Counter()
    for file in files:
        if file.suffix in (".safetensors", ".sft"):
            counts += _count_parameters(file)
    return Weights(sum(f.stat().st_size for f in files), tuple(counts.most_common()))


def choose_files(folder: Path, variant: str | None = None) -> list[Path]:
    """Return the files that from_pretrained() would load; where it has a choice, the smallest."""
    files = [f for f in sorted(folder.glob("*")) if WEIGHT_FILE.fullmatch(f.name)]
    chosen = [f for f in files if _part(f, "kind") == "safetensors"] or files
    wanted = [f for f in chosen if _part(f, "variant") == variant]
    chosen = wanted or [f for f in chosen if _part(f, "variant") is None] or chosen
    sets: defaultdict[tuple[str | None, bool], list[Path]] = defaultdict(list)
    for file in [f for f in chosen if _part(f, "stem") in STEMS] or chosen:
        sets[_part(file, "stem"), "-of-" in file.name].append(file)
    return min(sets.values(), key=lambda files: sum(f.stat().st_size for f in files), default=[])


def variants(folder: Path) -> set[str]:
    """Return the variants, such as fp16, of which a model's folder has weights."""
    found = (_part(f, "variant") for f in folder.glob("*/*") if WEIGHT_FILE.fullmatch(f.name))
    return {variant for variant in found if variant}


def only_variants(folder: Path, components: Collection[str]) -> set[str]:
    """Return the variants without one of which some of a model's components have no weights."""
    needed: set[str] = set()
    for component in components:
        files = [f for f in (folder / component).glob("*") if WEIGHT_FILE.fullmatch(f.name)]
        found = {_part(f, "variant") for f in files if _part(f, "stem") in STEMS}
        if found and None not in found:
            named = {variant for variant in found if variant}
            needed = needed & named or named
    return needed


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
