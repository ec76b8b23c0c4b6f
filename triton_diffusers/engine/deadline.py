# SPDX-License-Identifier: Apache-2.0
"""How long a request may take: its `timeout`, which Triton passes on and does not enforce."""

import time

from triton_diffusers.errors import TimedOutError


class Deadline:
    """The moment after which a request is not worth answering."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise TimedOutError when the time is over."""
        if self._end is not None and time.monotonic() > self._end:
            raise TimedOutError(f"the request's timeout of {self.timeout_s} s is over")
