# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks with callers ask for. Imported by every process, so it imports little."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILDER = [sys.executable, "-m", "builder.main"]
DEMO = ROOT / "model_repository" / "demo" / "pipeline"
DEFAULTS = {"max_sequence_length": 32, "true_cfg_scale": 2.0}
"""Arguments of every call, beside a negative prompt: two forwards of the denoiser a step."""
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PNG = b"\x89PNG\r\n\x1a\n"
"""How a PNG file begins: the only thing that callers look at."""


@dataclass(frozen=True)
class Request:
    """One picture."""

    number: int
    steps: int
    size: int

    @property
    def prompt(self) -> str:
        return f"a handwritten {WORDS[self.number % 10]}, the {self.number}th"


@dataclass(frozen=True)
class Work:
    """Endless requests, the same ones every time: all seeds and prompts are different."""

    steps: tuple[int, int] = (20, 20)
    sizes: tuple[int, ...] = (64,)
    draw: int = 0

    @classmethod
    def read(cls, fields: dict[str, Any]) -> "Work":
        """Return what `vars(work)` was before it travelled as JSON."""
        return cls(tuple(fields["steps"]), tuple(fields["sizes"]), fields["draw"])

    def requests(self) -> Iterator[Request]:
        draw, number = random.Random(self.draw), 100_000 * self.draw
        while True:
            number += 1
            yield Request(number, draw.randint(*self.steps), draw.choice(self.sizes))


EQUAL = Work()
MIXED = Work(steps=(8, 40))
