# SPDX-License-Identifier: Apache-2.0
"""The errors of this library, and the one place that words them."""

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """The operator must act: the entry or the load options are wrong, the model does not load."""


class RequestError(Exception):
    """The caller must act: INVALID_ARG for this request only."""


class BusyError(Exception):
    """The queue is full: UNAVAILABLE for this request, which may be sent again."""


class StuckError(BusyError):
    """A call makes no step and cannot be stopped: UNAVAILABLE until the model is loaded again."""


class CancelledError(Exception):
    """The caller went away: CANCELLED."""


class TimedOutError(CancelledError):
    """The request's time ran out: CANCELLED."""


class OutOfMemoryError(Exception):
    """A call needs more memory than there is: INTERNAL for this request; the next one may fit."""


def near_miss(name: str, accepted: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or "" when nothing accepted looks like `name`."""
    close = difflib.get_close_matches(name, list(accepted), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown(thing: str, name: str, where: str, accepted: Iterable[str]) -> str:
    """Word the refusal of a name: what, where, the near miss, and what is accepted."""
    names = sorted(accepted)
    listed = ", ".join(names) if names else "none"
    return f"{thing} '{name}' is not known to {where}.{near_miss(name, names)} Accepted: {listed}."


def one_line(error: BaseException) -> str:
    """Return an exception's own text on one line, with its type unless the text is ours."""
    text = " ".join(str(error).split())
    ours = isinstance(error, ConfigError | RequestError | OutOfMemoryError)
    return text if ours else f"{type(error).__name__}: {text}"
