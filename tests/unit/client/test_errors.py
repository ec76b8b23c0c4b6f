# SPDX-License-Identifier: Apache-2.0
import grpc
import pytest

from triton_diffusers.client import errors
from triton_diffusers.client.errors import (
    MIXED,
    STATUSES,
    Cancelled,
    DiffusersClientError,
    InvalidRequest,
    ModelNotFound,
    PipelineError,
    ServerBusy,
    ServerUnavailable,
    error_for,
)

TRITON_HTTP = ("400", "404", "409", "500", "501", "503", "499")


def test_every_status_of_both_protocols_is_mapped():
    names = {str(code) for code in grpc.StatusCode} - {"StatusCode.OK"}
    assert names == {status for status in STATUSES if status.startswith("StatusCode")}
    assert set(TRITON_HTTP) <= set(STATUSES)
    assert {status for status in MIXED if status} <= set(STATUSES)


def test_every_class_is_reached_and_listed_in_the_tree():
    classes = set(DiffusersClientError.__subclasses__())
    assert classes <= set(STATUSES.values())
    for error_class in classes:
        assert error_class.__name__ in errors.__doc__


@pytest.mark.parametrize(
    ("pair", "message", "expected"),
    [
        (("INVALID_ARGUMENT", "400"), "input 'x' is wrong", InvalidRequest),
        (("UNIMPLEMENTED", "501"), "doesn't support decoupled", InvalidRequest),
        (("UNAVAILABLE", "503"), "the queue is full: 8 requests wait", ServerBusy),
        (
            ("UNAVAILABLE", "503"),
            "the answer of 3 MB does not fit into the server's shared memory",
            PipelineError,
        ),
        (("NOT_FOUND", "404"), "Request for unknown model: 'x' is not found", ModelNotFound),
        (("UNAVAILABLE", "400"), "Request for unknown model: 'x' is not found", ModelNotFound),
        (("INTERNAL", "500"), "RuntimeError: boom", PipelineError),
        (("INTERNAL", "500"), "Stub process 'x_0' is not healthy.", ServerUnavailable),
        (("CANCELLED", "400"), "the request was cancelled", Cancelled),
        (("CANCELLED", "400"), "the request's timeout of 2 s is over", Cancelled),
    ],
)
def test_both_protocols_mean_the_same(pair, message, expected):
    for status in ("StatusCode." + pair[0], pair[1]):
        error = error_for(status, message)
        assert (type(error), str(error), error.status) == (expected, message, status)


@pytest.mark.parametrize(
    "message",
    [
        "failed to connect to all addresses; last error: UNKNOWN: Connection refused",
        "Socket closed",
        "DNS resolution failed for nowhere:8001",
        "recvmsg:Connection reset by peer",
        "GOAWAY received",
    ],
)
def test_a_broken_connection_is_not_a_full_queue(message):
    assert type(error_for("StatusCode.UNAVAILABLE", message)) is ServerUnavailable


def test_words_inside_a_refusal_do_not_change_its_class():
    for message in ("value 'cancelled' is not known", "'the request was cancelled' is no format"):
        assert type(error_for("400", message)) is InvalidRequest
    assert type(error_for("StatusCode.INVALID_ARGUMENT", "Socket closed")) is InvalidRequest


@pytest.mark.parametrize(
    "noisy",
    [
        "[400] bad",
        "[StatusCode.INVALID_ARGUMENT] bad",
        "[request id: <id_unknown>] bad ",
        "[400] [request id: 5] bad",
    ],
)
def test_prefixes_are_stripped(noisy):
    assert str(error_for("400", noisy)) == "bad"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[StatusCode.INVALID_ARGUMENT] input 'x' is wrong", InvalidRequest),
        ("[request id: 5] [StatusCode.UNAVAILABLE] the queue is full", ServerBusy),
        ("[StatusCode.CANCELLED] the request was cancelled", Cancelled),
        ("[StatusCode.INTERNAL] RuntimeError: [StatusCode.NOT_FOUND]", PipelineError),
        ("Stub process 'x_0' is not healthy.", ServerUnavailable),
        ("[request id: <id_unknown>] unexpected inference input 'x' for model 'y'", InvalidRequest),
    ],
)
def test_the_texts_of_a_stream_carry_their_status(text: str, expected: type):
    error = error_for(None, text)
    assert type(error) is expected
    assert error.status is None or error.status in text
    assert not error.message.startswith("[")


def test_unknown_and_empty_are_still_errors():
    assert type(error_for("418", "teapot")) is DiffusersClientError
    assert type(error_for(None, "some text")) is DiffusersClientError
    assert "503" in str(error_for("503", ""))
    assert str(error_for("500", None))


@pytest.mark.parametrize("status", ["StatusCode.UNAVAILABLE", "400"])
def test_a_model_that_could_not_be_loaded_says_where_to_look(status):
    error = error_for(status, "Request for unknown model: 'sana' has no available versions")
    assert type(error) is ModelNotFound
    assert "the server has it but could not load it" in str(error)
    assert str(error).endswith("see the server's log, or builder check sana")


def test_what_cannot_be_printed_is_escaped():
    assert str(error_for("400", "a\x00b\x1b[31m\nnext \u00e9")) == "a\\x00b\\x1b[31m\nnext \u00e9"
