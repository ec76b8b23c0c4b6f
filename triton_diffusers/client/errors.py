# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N818 - the names are the contract of the helper
"""What a call can raise, and the one table from Triton's statuses and messages to it.

DiffusersClientError
+-- InvalidRequest      the server (or the helper before it) refuses the request as sent
+-- ServerBusy          the queue is full; the same request may be sent again later
+-- Cancelled           the time-out passed, or the caller or the server ended the request
+-- ModelNotFound       no such entry, or it is not loaded
+-- ServerUnavailable   nothing answers, the connection broke, or the model's process is gone
+-- PipelineError       the pipeline failed while it ran
"""

import re


class DiffusersClientError(Exception):
    """The base of all errors of this package; `status` is the server's code, if it sent one."""

    def __init__(self, message: str, status: str | None = None):
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidRequest(DiffusersClientError):
    """The request as sent cannot be served; the message says what to send instead."""


class ServerBusy(DiffusersClientError):
    """The queue is full; the same request may be sent again later."""


class Cancelled(DiffusersClientError):
    """The time-out passed, or the caller or the server ended the request."""


class ModelNotFound(DiffusersClientError):
    """The server has no such entry, or it is not loaded."""


class ServerUnavailable(DiffusersClientError):
    """Nothing answers, the connection broke, or the model's process is gone."""


class PipelineError(DiffusersClientError):
    """The pipeline failed while it ran; the message is the exception's own."""


STATUSES: dict[str, type[DiffusersClientError]] = {
    "StatusCode.CANCELLED": Cancelled,
    "StatusCode.UNKNOWN": PipelineError,
    "StatusCode.INVALID_ARGUMENT": InvalidRequest,
    "StatusCode.DEADLINE_EXCEEDED": Cancelled,
    "StatusCode.NOT_FOUND": ModelNotFound,
    "StatusCode.ALREADY_EXISTS": InvalidRequest,
    "StatusCode.PERMISSION_DENIED": DiffusersClientError,
    "StatusCode.RESOURCE_EXHAUSTED": ServerBusy,
    "StatusCode.FAILED_PRECONDITION": InvalidRequest,
    "StatusCode.ABORTED": PipelineError,
    "StatusCode.OUT_OF_RANGE": InvalidRequest,
    "StatusCode.UNIMPLEMENTED": InvalidRequest,
    "StatusCode.INTERNAL": PipelineError,
    "StatusCode.UNAVAILABLE": ServerBusy,
    "StatusCode.DATA_LOSS": PipelineError,
    "StatusCode.UNAUTHENTICATED": DiffusersClientError,
    "400": InvalidRequest,
    "401": DiffusersClientError,
    "403": DiffusersClientError,
    "404": ModelNotFound,
    "409": InvalidRequest,
    "413": InvalidRequest,
    "429": ServerBusy,
    "499": Cancelled,
    "500": PipelineError,
    "501": InvalidRequest,
    "502": ServerUnavailable,
    "503": ServerBusy,
    "504": ServerUnavailable,
}
"""Status of an InferenceServerException, gRPC or HTTP -> class."""

MESSAGES: tuple[tuple[str, type[DiffusersClientError]], ...] = (
    (r"^Request for unknown model|^Model .* is not ready|has no available versions", ModelNotFound),
    (r"^Stub process .* is not healthy|^Server is (stopping|not ready)", ServerUnavailable),
    (
        r"failed to connect|connections to all backends|errors resolving|(DNS|name) resolution"
        r"|connection (refused|reset)|(socket|transport) closed|GOAWAY|broken pipe|endpoint clos",
        ServerUnavailable,
    ),
    (r"message (is )?larger than max", InvalidRequest),
    (
        r"^(unexpected|expected|unable to parse|inference) .*\b(input|output|shape)\b",
        InvalidRequest,
    ),
    (r"^the request('s timeout| was cancelled)", Cancelled),
    # the same again does not fit either: nobody shall send it until it does
    (r"^the answer of .* does not fit into the server's shared memory", PipelineError),
)
"""Start of a message -> class, for what Triton and gRPC say under a status that means several
things: UNAVAILABLE is also a refused connection, HTTP 400 also a cancelled request."""

MIXED = {
    None,
    *("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED"),
    *("StatusCode.INTERNAL", "StatusCode.UNKNOWN", "400", "404", "500", "503"),
}
"""The statuses whose message is looked at; None: a stream's message that starts with none, which
Triton itself wrote."""

NOT_LOADED = re.compile(r"'([^']+)' has no available versions")

IN_TEXT = re.compile(r"^\s*(\[request id: [^\]]*\]\s*)?\[(StatusCode\.\w+)\]")
"""The status of a stream's error: Triton streams texts only, so entries put it before theirs."""

NOISE = re.compile(r"^\s*(\[(StatusCode\.\w+|\d{3}|request id: [^\]]*)\]\s*)+")


def timed_out(timeout_s: float | None) -> Cancelled:
    """Return the error of a call whose own time-out passed."""
    return Cancelled(f"the server did not answer within {timeout_s} s")


def error_for(status: str | None, message: str | None) -> DiffusersClientError:
    """Return the error that a server's status and message mean, its text without Triton's prefixes.

    status: "StatusCode.NAME", an HTTP code as text, or None where only a message came.
    """
    if status is None and (found := IN_TEXT.match(message or "")):
        status = found[2]
    text = printable(NOISE.sub("", message or "").strip())
    text = text or f"the server answered {status} without a text"
    if status in MIXED:
        for pattern, error_class in MESSAGES:
            if re.search(pattern, text, re.IGNORECASE):
                return error_class(_with_advice(text), status)
    return STATUSES.get(status or "", DiffusersClientError)(text, status)


def printable(text: str) -> str:
    """Escape what a terminal cannot show; lines stay lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _with_advice(text: str) -> str:
    """Say of a model that is there but not loaded what Triton's words do not say."""
    found = NOT_LOADED.search(text)
    if found is None:
        return text
    return (
        f"{text}: the server has it but could not load it (or has not yet): "
        f"see the server's log, or builder check {found[1]}"
    )
