# SPDX-License-Identifier: Apache-2.0
"""Real calls of functions, counted while real work runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from triton_diffusers.loading.plan import plan_load, present
from triton_diffusers.pipelines.classes import find_pipeline_class
from triton_diffusers.pipelines.model_files import find_model, read_index
from triton_diffusers.placement.placement import check_placement

ONCE = (plan_load, find_model, read_index, find_pipeline_class, present, check_placement)
"""What a load, and a command about an entry, finds out once."""


@contextmanager
def counted(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Count the calls of functions in this thread by name; they run as ever."""
    codes = {f.__code__: f.__name__ for f in functions}
    calls = Counter(dict.fromkeys(codes.values(), 0))

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in codes:
            calls[codes[frame.f_code]] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
