# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a call go through shared memory.

Triton finds out that a region is too small for an output only after the pipeline has run, and then
the result is lost. So an output is placed only where its size is known: the caller said it, or the
same request was answered twice with it, apart from what cannot change a size: seeds, words, pixels.
(Twice, because some pipelines draw the length of a sound when none is given.)
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_diffusers.client.call import raw_bytes
from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.regions import LARGE_BYTES, Slot, place
from triton_diffusers.contract import AUDIO_FIELDS, FRAMES, IMAGES, SEED
from triton_diffusers.media.pixels import Array

MAX_REMEMBERED = 256
BIG_OUTPUTS = (IMAGES.name, FRAMES.name, *AUDIO_FIELDS)

Sizes = dict[str, int]


class OutputSizes:
    """The byte sizes of outputs, by what determines them."""

    def __init__(self) -> None:
        self._seen: dict[Any, Sizes | None] = {}
        """None: the same key had different sizes."""
        self._confirmed: dict[Any, Sizes] = {}
        self._lock = threading.RLock()

    def key(self, entry: ServedEntry, inputs: Mapping[str, Array]) -> Any:
        """Return what determines the sizes of the outputs, hashable."""
        return tuple(
            (name, array.shape, _determining(entry, name, array))
            for name, array in sorted(inputs.items())
        )

    def expected(self, key: Any) -> Sizes:
        """Return the sizes of the large outputs as seen twice; empty when unknown or varying."""
        return self._confirmed.get(key, {})

    def learn(self, key: Any, outputs: Mapping[str, Array]) -> None:
        """Remember what a request was answered with."""
        sizes = {n: a.nbytes for n, a in outputs.items() if a.dtype != np.object_}
        large = {name: size for name, size in sizes.items() if size >= LARGE_BYTES}
        with self._lock:
            if key not in self._seen:
                self._seen[key] = large
            elif self._seen[key] == large:
                self._confirmed[key] = large
            else:
                self.forget(key)
            while len(self._seen) > MAX_REMEMBERED:
                oldest = next(iter(self._seen))
                self._seen.pop(oldest)
                self._confirmed.pop(oldest, None)

    def forget(self, key: Any) -> None:
        """Never expect a size for this key again."""
        with self._lock:
            self._seen[key] = None
            self._confirmed.pop(key, None)


def _determining(entry: ServedEntry, name: str, array: Array) -> Any:
    """Return the part of an input's value that may change the size of an output."""
    words = array.dtype == np.object_ and entry.inputs[name].dims == (-1,)
    if name == SEED.name or entry.is_media(name) or (words and not entry.is_file(name)):
        return None
    return hash(raw_bytes(array))


@dataclass(frozen=True)
class Plan:
    """What goes where in a region of `byte_size` bytes."""

    inputs: dict[str, Slot]
    outputs: dict[str, Slot]
    byte_size: int


def plan_region(
    entry: ServedEntry, inputs: Mapping[str, Array], expected: Sizes, output_bytes: int | None
) -> Plan | None:
    """Lay out the large numeric inputs and the outputs of known size; None: nothing is large.

    output_bytes: the caller's own word for the size of the entry's main output.
    """
    big_inputs = {
        name: array.nbytes
        for name, array in inputs.items()
        if array.dtype != np.object_ and array.nbytes >= LARGE_BYTES
    }
    sizes = {name: size for name, size in expected.items() if name in entry.outputs}
    main = next((name for name in BIG_OUTPUTS if name in entry.outputs), None)
    if output_bytes is not None and main is not None:
        sizes[main] = output_bytes
    input_slots, end = place(big_inputs)
    output_slots, end = place(sizes, end)
    return Plan(input_slots, output_slots, end) if end else None
