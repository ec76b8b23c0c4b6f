# SPDX-License-Identifier: Apache-2.0
"""What a campaign counts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """The numbers of one campaign. wrong, twice, never and leaked must be 0, healed equal harmed.

    exact: answers equal to the last bit to those of the calm server. refused: errors, each with a
    message. never: requests without an answer when their time was over. harmed: what was killed,
    stalled or flooded. leaked: processes and shared memory that are there after the end.
    """

    name: str
    sent: int = 0
    exact: int = 0
    refused: int = 0
    wrong: int = 0
    twice: int = 0
    never: int = 0
    harmed: int = 0
    healed: int = 0
    leaked: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_good(self) -> bool:
        """Tell whether all held, and something was tried."""
        bad = self.wrong + self.twice + self.never + self.leaked
        return not bad and self.healed == self.harmed and self.sent > 0

    def count(self, outcome: str, note: str = "") -> None:
        """Count one more `outcome`, the name of a number; the note says which."""
        with self._lock:
            setattr(self, outcome, getattr(self, outcome) + 1)
            if note:
                self.notes[f"{outcome}: {note}"] += 1
