# SPDX-License-Identifier: Apache-2.0
"""The errors of this library, and the one place that words them.

ConfigError             the operator must act: wrong entry or options, the model does not load
CallError               what a request may end with, each with its status in Triton and in gRPC
+-- RequestError        INVALID_ARG    the caller must act, for this request only
+-- BusyError           UNAVAILABLE    the queue is full; the request may be sent again
|   +-- StuckError      UNAVAILABLE    a call makes no step and cannot be stopped: load again
|   +-- NoRoomError     UNAVAILABLE    the answer does not fit into the server's shared memory
+-- CancelledError      CANCELLED      the caller went away
|   +-- TimedOutError   CANCELLED      the request's time ran out
+-- OutOfMemoryError    INTERNAL       a call needs more memory than there is; the next may fit

Any other exception is INTERNAL too, with its traceback in the log.
"""

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """The operator must act: the entry or the load options are wrong, the model does not load."""


class CallError(Exception):
    """The base of what a request may end with, as a word of ours to its caller."""

    triton_status = grpc_status = "INTERNAL"
    outcome = "error"
    """What metrics and the log call it."""


class RequestError(CallError):
    """The caller must act: the request as sent cannot be served."""

    triton_status, grpc_status, outcome = "INVALID_ARG", "INVALID_ARGUMENT", "invalid"


class BusyError(CallError):
    """The queue is full; the request may be sent again."""

    triton_status, grpc_status, outcome = "UNAVAILABLE", "UNAVAILABLE", "busy"


class CancelledError(CallError):
    """The caller went away."""

    triton_status, grpc_status, outcome = "CANCELLED", "CANCELLED", "cancelled"


class TimedOutError(CancelledError):
    """The request's time ran out."""

    outcome = "timeout"


class OutOfMemoryError(CallError):
    """A call needs more memory than there is; the next one may fit."""

    outcome = "out_of_memory"


class StuckError(BusyError):
    """A call makes no step and cannot be stopped: nothing runs until the model is loaded again."""

    outcome = "stuck"


class NoRoomError(BusyError):
    """The answer does not fit into the server's shared memory; a smaller one may."""

    outcome = "out_of_memory"


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
