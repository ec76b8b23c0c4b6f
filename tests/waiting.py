# SPDX-License-Identifier: Apache-2.0
"""How tests wait for what comes true by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    """Return what a condition returns, once that is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return value
