# SPDX-License-Identifier: Apache-2.0
"""One client that wants the gateway for itself: others are answered meanwhile, and afterwards."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.campaign.serving import serving
from tests.campaign.tally import Tally
from tests.server.gateway.command import start_gateway

PATH = "/v1/images/generations"
LIVE_S = 1.0
"""What /health/live may take while others attack."""
ANSWER_S = 60.0
ATTACK_S = 40
MIB = 2**20
JSON = b"Content-Type: application/json\r\n"


class Target:
    """Where attacks go."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = (url.split("/")[2].split(":")[0], int(url.rsplit(":", 1)[1]))
        self.end = time.monotonic() + ATTACK_S

    def connect(self) -> socket.socket:
        """Open a connection that waits for nothing long."""
        return socket.create_connection(self.address, timeout=10)

    def pour(self, start: bytes, block: bytes, times: int, pause_s: float = 0) -> None:
        """Send blocks until all are sent, the gateway hangs up, or the time is over."""
        with suppress(OSError), self.connect() as connection:
            connection.sendall(start)
            for _ in range(times):
                if time.monotonic() > self.end:
                    return
                connection.sendall(block)
                time.sleep(pause_s)
            connection.recv(MIB)

    def post(self, body: bytes) -> None:
        """Send a whole body of JSON."""
        with suppress(httpx.HTTPError):
            head = {"Content-Type": "application/json"}
            httpx.post(self.url + PATH, content=body, headers=head, timeout=ATTACK_S)

    def head(self, *lines: bytes) -> bytes:
        """The start of a POST."""
        return b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(lines)


def many_headers(target: Target) -> None:
    """150 MB of headers."""
    target.pour(
        target.head(), b"".join(b"X%05d: %s\r\n" % (i, b"a" * 100) for i in range(9000)), 150
    )


def endless_header(target: Target) -> None:
    """A header whose value does not end."""
    target.pour(target.head(b"X: "), b"a" * MIB, 150)


def many_fields(target: Target) -> None:
    """300,000 unknown fields."""
    target.post(b'{"model":"pictures",' + b",".join(b'"k%d":1' % i for i in range(300_000)) + b"}")


def deep_json(target: Target) -> None:
    """A list in a list in a list."""
    target.post(b'{"model":"pictures","prompt":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def many_parts(target: Target) -> None:
    """A form of a hundred thousand fields."""
    part = b'--b\r\nContent-Disposition: form-data; name="k"\r\n\r\nv\r\n'
    head = b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n"
    body = part * 100_000
    start = target.head(head % len(body)).replace(PATH.encode(), b"/v1/images/edits")
    target.pour(start, body, 1)


def slow_bodies(target: Target) -> None:
    """Eight bodies of 64 MiB that hardly move."""
    start = target.head(JSON, b"Content-Length: %d\r\n\r\n" % (64 * MIB), b'{"prompt": "')
    _at_once([lambda: target.pour(start, b"a", ATTACK_S * 2, 0.5)] * 8)


def slow_heads(target: Target) -> None:
    """Two hundred heads, letter by letter."""
    _at_once([lambda: target.pour(target.head(), b"a", ATTACK_S, 1)] * 200)


def endless_chunks(target: Target) -> None:
    """A chunked body without end."""
    start = target.head(JSON, b"Transfer-Encoding: chunked\r\n\r\n")
    target.pour(start, b"100000\r\n" + b" " * MIB + b"\r\n", 300)


def idle_connections(target: Target) -> None:
    """Two thousand connections that say nothing."""
    with ExitStack() as stack:
        for _ in range(2000):
            with suppress(OSError):
                stack.enter_context(target.connect())
        time.sleep(5)


def garbage(target: Target) -> None:
    """Bytes that are no HTTP."""
    draw = random.Random(str(target.address))
    for _ in range(300):
        with suppress(OSError), target.connect() as connection:
            connection.sendall(draw.randbytes(draw.randint(1, 3000)) + b"\r\n\r\n")
            connection.settimeout(2)
            connection.recv(4096)


ATTACKS: tuple[Callable[[Target], None], ...] = (
    many_headers,
    endless_header,
    many_fields,
    deep_json,
    many_parts,
    slow_bodies,
    slow_heads,
    endless_chunks,
    idle_connections,
    garbage,
)


def flood(folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random) -> None:
    """Attack a gateway in each way; it answers others within a second, and is well afterwards."""
    with (
        serving(folder, tally, ("pictures",)) as running,
        start_gateway(folder, "--triton", running.grpc) as gateway,
    ):
        url = gateway.url
        wanted = _picture(url)
        for attack in draw.sample(ATTACKS, min(rounds, len(ATTACKS))):
            _attack(attack, url, tally, wanted)
        gateway.stop()


def _attack(attack: Callable[[Target], None], url: str, tally: Tally, wanted: Any) -> None:
    tally.count("harmed")
    thread = threading.Thread(target=attack, args=[Target(url)], daemon=True)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        slowest = max(slowest, _live(url))
        time.sleep(0.1)
    tally.notes[f"{attack.__name__}: /health/live took {slowest:.2f} s at most"] += 1
    tally.count("sent")
    try:
        found = _picture(url)
    except (httpx.HTTPError, KeyError) as error:
        tally.count("never", f"after {attack.__name__}: {error!r}")
        return
    tally.count("exact" if found == wanted else "wrong")
    if slowest <= LIVE_S:
        tally.count("healed")


def _live(url: str) -> float:
    started = time.monotonic()
    with suppress(httpx.HTTPError):
        if httpx.get(url + "/health/live", timeout=ANSWER_S).status_code == 200:
            return time.monotonic() - started
    return ANSWER_S


def _picture(url: str) -> str:
    asked = {"model": "pictures", "prompt": "a fox", "seed": 1, "response_format": "b64_json"}
    answer = httpx.post(url + PATH, json=asked, timeout=ANSWER_S)
    answer.raise_for_status()
    return str(answer.json()["data"][0]["b64_json"])


def _at_once(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
