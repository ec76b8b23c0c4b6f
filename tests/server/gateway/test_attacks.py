# SPDX-License-Identifier: Apache-2.0
"""One caller against all others: heads, bodies and connections that a gateway must not wait for.

No tritonserver is behind these gateways: what gets through is answered with 502.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.server.gateway.calling import (
    PATH,
    QUICK,
    TIMEOUT_S,
    check_error,
    gateway_metric,
    wait_for,
)
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.gateway.errors import ApiError
from triton_diffusers.gateway.requests.media import _from_text, _white_where_transparent

NOBODY = "127.0.0.1:1"
MIB = 2**20
POST = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
EDITS, CHAT, VIDEOS = "/v1/images/edits", "/v1/chat/completions", "/v1/videos"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=B"


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The settings' defaults."""
    with serve_gateway(NOBODY) as url:
        yield url


@pytest.fixture(scope="module")
def narrow() -> Iterator[str]:
    with serve_gateway(
        NOBODY,
        max_body_bytes=4 * MIB,
        max_body_bytes_in_all=8 * MIB,
        max_requests=8,
        max_connections=200,
        head_timeout_s=2,
        body_timeout_s=4,
        write_timeout_s=0.5,
    ) as url:
        yield url


def connect(url: str, *begin: bytes) -> socket.socket:
    made = socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 80), TIMEOUT_S)
    for part in begin:
        made.sendall(part)
    return made


def live(url: str) -> None:
    assert httpx.get(f"{url}/health/live", timeout=5).status_code == 200


def meanwhile(url: str, attack: Callable[[], Any]) -> Any:
    """Attack again and again until /health/live was answered three times; then all is well."""
    is_over = threading.Event()

    def repeat() -> Any:
        while True:
            result = attack()
            if is_over.is_set():
                return result

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repeat)
        try:
            for _ in range(3):
                live(url)
                assert not running.done()
        finally:
            is_over.set()
        result = running.result(TIMEOUT_S)
    well(url)
    return result


def well(url: str) -> None:
    live(url)
    wait_for(lambda: httpx.post(url + PATH, json=QUICK, timeout=5).status_code == 502)


def read_to_end(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while part := connection.recv(2**16):
            answer += part
    except ConnectionError:
        pass
    return answer


def flood(url: str, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send without end; return how many bytes were taken, and what came back."""
    sent = 0
    with connect(url, begin) as attacker:
        try:
            while sent < 64 * MIB:
                attacker.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        answer = read_to_end(attacker)
    return sent, answer


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        pytest.param(GET + b"X: ", b"a" * 2**16, 431, id="value"),
        pytest.param(GET, b"a" * 2**16, 431, id="name"),
        pytest.param(GET, b"X: a\r\n" * 1000, 431, id="headers"),
        pytest.param(b"GET /", b"a" * 2**16, 431, id="path"),
        pytest.param(b"GET /?", b"a=1&" * 2**14, 431, id="query"),
        pytest.param(b"", b"\r\n" * 2**15, 431, id="blank lines"),
        pytest.param(b"", b"a" * 2**16, 400, id="no HTTP"),
        pytest.param(CHUNKED, b"1\r\na\r\n" * 2**13, 400, id="tiny chunks"),
        pytest.param(CHUNKED + b"5;", b"a" * 2**16, 400, id="chunk extension"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n0\r\n", b"X: a\r\n" * 1000, 400, id="trailers"),
        pytest.param(CHUNKED, b"10000\r\n" + b"a" * 2**16 + b"\r\n", 413, id="chunked body"),
        pytest.param(POST + b"Content-Length: 99999999999\r\n\r\n", b"a" * 2**16, 413, id="length"),
    ],
)
def test_what_has_no_end_is_cut(narrow: str, begin: bytes, piece: bytes, status: int) -> None:
    sent, answer = meanwhile(narrow, lambda: flood(narrow, begin, piece))
    assert sent < 32 * MIB
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"]
    if status == 431:
        assert error["code"] == "head_too_large"
        assert "65536" in error["message"]


def test_heads_end_at_64_kib(plain: str) -> None:
    def ask(size: int) -> int:
        return httpx.get(f"{plain}/health/live", headers={"X-A": "a" * size}).status_code

    assert ask(64 * 1024 - 1000) == 200
    check_error(httpx.get(f"{plain}/health/live", headers={"X-A": "a" * 64 * 1024}), 431)
    many = {f"X-{n}": "a" for n in range(300)}
    check_error(httpx.get(f"{plain}/health/live", headers=many), 431)


def keys(count: int, **around: Any) -> bytes:
    fields = ",".join(f'"k{n}":1' for n in range(count))
    return (json.dumps(QUICK | around)[:-1] + "," + fields + "}").encode()


def part(name: str, value: bytes, more: bytes = b"") -> bytes:
    head = f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n'.encode()
    return head + more + b"\r\n" + value + b"\r\n"


MANY = keys(300_000)
NUMBERS = b'{"prompt":"x","x":[' + b"1," * 2_000_000 + b"1]}"
HELD = b'{"prompt":"x","extra_body":' + MANY + b"}"
DEEP = b'{"prompt":"x","x":' + b"[" * 100 + b"]" * 100 + b"}"
END = b"--B--\r\n"
BODIES = {
    "fields": (MANY, JSON, "values"),
    "some fields": (keys(30_000), JSON, "30003 fields"),
    "fields in a field": (HELD, JSON, "values"),
    "numbers": (NUMBERS, JSON, "values"),
    "lists": (b'{"x":[' + b"[]," * 1_000_000 + b"1]}", JSON, "values"),
    "deep": (DEEP, JSON, "deep"),
    "deeper": (b"[" * 4 * MIB, JSON, "values"),
    "a number": (b'{"seed":' + b"9" * 4 * MIB + b"}", JSON, "no JSON"),
    "blanks": (b" " * 20 * MIB, JSON, "no JSON"),
    "escapes": (b'{"model":"' + b"\\u0041" * 10**6, JSON, "no JSON"),
}
FORMS = {
    "names": (b"&".join(b"k%d=1" % n for n in range(100_000)), FORM, "100000 fields"),
    "separators": (b"&" * 4 * MIB, FORM, "fields"),
    "parts": (b"".join(part(f"k{n}", b"1") for n in range(100_000)) + END, PARTS, "Too many"),
    "part heads": (part("a", b"1", b"X: a\r\n" * 10**6), PARTS, "cannot be read"),
    "a part head": (part("a", b"1", b"X: " + b"a" * 4 * MIB), PARTS, "cannot be read"),
    "no boundary": (b"\r\n--" * 5 * MIB, PARTS, ""),
    "near boundaries": (part("a", b"\r\n--" * 5 * MIB), PARTS, ""),
    "a charset": (part("a", b"a-" * MIB), PARTS + "; charset=punycode", "charset"),
    "a type": (END, PARTS + ";" * 5000, "Content-Type"),
}


READ_AS_THOSE = [(path, name) for path in (CHAT, VIDEOS) for name in ("fields", "deep")]


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in (PATH, EDITS) for name in BODIES] + READ_AS_THOSE
)
def test_a_body_that_is_too_much_holds_up_nobody(plain: str, path: str, name: str) -> None:
    refuse(plain, path, *BODIES[name])


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_too_much_holds_up_nobody(plain: str, name: str) -> None:
    refuse(plain, EDITS, *FORMS[name])


def refuse(url: str, path: str, content: bytes, kind: str, told: str) -> None:
    def send() -> httpx.Response:
        headers = {"Content-Type": kind}
        return httpx.post(url + path, content=content, headers=headers, timeout=TIMEOUT_S)

    answer = meanwhile(url, send)
    assert told in check_error(answer, 400 if told else answer.status_code)["message"]
    assert answer.status_code in (400, 502)
    assert len(answer.content) < 5000


def test_what_is_large_and_simple_is_taken(plain: str) -> None:
    array = [[0.5] * 1000] * 100
    body = QUICK | {"latents": array, "extra_body": {f"k{n}": n for n in range(200)}}
    assert httpx.post(plain + PATH, json=body, timeout=TIMEOUT_S).status_code == 502
    text = QUICK | {"prompt": "a" * 10 * MIB}
    assert httpx.post(plain + PATH, json=text, timeout=TIMEOUT_S).status_code == 502
    files = {"image": b"a" * 10 * MIB}
    sent = httpx.post(plain + EDITS, files=files, data={"prompt": "a"}, timeout=TIMEOUT_S)
    assert sent.status_code == 502


def test_bodies_that_stall_hold_up_nobody(narrow: str) -> None:
    """Neither by what they declare nor by the most that they may send."""
    head = POST + f"Content-Length: {4 * MIB}\r\n\r\n".encode()
    for sent in (1, 4 * MIB - 1):
        with ExitStack() as stack:
            for _ in range(12):
                stack.enter_context(connect(narrow, head, b" " * sent))
            for size in (100, 3 * MIB):
                content = json.dumps(QUICK).encode() + b" " * size
                headers = {"Content-Type": JSON}
                answer = httpx.post(narrow + PATH, content=content, headers=headers, timeout=5)
                assert answer.status_code == 502, answer.text
            live(narrow)
    well(narrow)


def test_a_body_has_a_deadline(narrow: str) -> None:
    """A byte now and then is no pause, but it never ends."""
    with connect(narrow, POST + b"Content-Length: 1000\r\n\r\n") as slow:
        slow.settimeout(0.1)
        answer, until = b"", time.monotonic() + 20
        while not answer and time.monotonic() < until:
            slow.sendall(b" ")
            live(narrow)
            try:
                answer = slow.recv(2**16)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout_s" in answer
    well(narrow)


@pytest.mark.parametrize("begin", [b"", GET, GET + b"\r\n", POST + b"Content-Length: 9\r\n\r\nX"])
def test_connections_beyond_the_limit_close_those_that_wait(narrow: str, begin: bytes) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connect(narrow, begin)) for _ in range(250)]
        for _ in range(3):
            live(narrow)
        assert read_to_end(held[0]).count(b"HTTP/1.1") == begin.endswith(b"\r\n\r\n")
    well(narrow)


def test_two_thousand_idle_connections(plain: str) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connect(plain, GET)) for _ in range(2000)]
        for _ in range(3):
            live(plain)
        held[0].sendall(b"\r\n")
        assert held[0].recv(100).startswith(b"HTTP/1.1 200")
    well(plain)


def test_who_reads_nothing_is_cut_off(narrow: str) -> None:
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(TIMEOUT_S)
        reader.connect((httpx.URL(narrow).host, httpx.URL(narrow).port or 80))
        reader.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        alone = 0  # times in a row that no other request ran than the one that asks

        def is_cut_off() -> bool:
            nonlocal alone
            alone = alone + 1 if gateway_metric(narrow, "requests_running") == 1 else 0
            return alone > 5

        wait_for(is_cut_off)
        assert read_to_end(reader).count(b"HTTP/1.1 200 OK") < 1000
    well(narrow)


def test_pipelined_requests_wait_for_their_turn(plain: str) -> None:
    count = 3000
    with connect(plain) as sender:
        sender.settimeout(TIMEOUT_S)
        threading.Thread(target=sender.sendall, args=((GET + b"\r\n") * count,)).start()
        found, tail = 0, b""
        while found < count:
            got = tail + sender.recv(2**16)
            assert got != tail
            found += got.count(b"HTTP/1.1 200 OK")
            tail = got[-14:] if b"HTTP/1.1 200 OK" not in got[-14:] else b""
            if found == 1:
                live(plain)
    well(plain)


def test_nobody_talks_in_websockets(plain: str) -> None:
    head = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with connect(plain, GET + head + b"Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n\r\n") as one:
        assert not one.recv(100).startswith(b"HTTP/1.1 101")
    well(plain)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that tells of many pixels, with transparency."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    file = b"\x89PNG\r\n\x1a\n"
    for chunk in (header, data, b"IEND"):
        file += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return file


@pytest.mark.parametrize("size", [(9000, 9000), (100_000, 100_000), (1, 2**30)])
def test_a_bomb_is_refused_before_it_is_decoded(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(picture: object) -> None:
        raise AssertionError("it is decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(ApiError) as refused:
        _white_where_transparent("mask", bomb(*size), 8192 * 8192)
    assert refused.value.status == 400
    assert "decoded" not in str(refused.value)


def test_base64_may_hold_blanks() -> None:
    assert _from_text("image", "QUJD \n REVG\r\n") == b"ABCDEF"
    assert _from_text("image", "data:image/png;base64, QUJD") == b"ABC"
    for wrong in ("é" * 100, "/etc/passwd.", "A"):
        with pytest.raises(ApiError, match="base64"):
            _from_text("image", wrong)
