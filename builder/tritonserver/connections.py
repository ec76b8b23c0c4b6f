# SPDX-License-Identifier: Apache-2.0
"""The connections of a server's clients, ended from outside: requests that it will never answer.

Triton never answers what a dead Python process was running and cannot be told to; only the end of
their connections reaches those clients. Linux lends us the server's sockets for that (pidfd_getfd),
as it may trace its own child. Where it may not, the server must be started again.
"""

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

SYS_PIDFD_GETFD = 438
LAST_DATA_SENT, LAST_DATA_RECEIVED = 44, 52
"""Where struct tcp_info has the milliseconds since then."""
TCP_INFO_BYTES = 104


def clients(pid: int, http: int, grpc: int) -> dict[str, int]:
    """Return the connections of the server's clients: "socket:[inode]" -> port."""
    with suppress(OSError, AttributeError):
        return {name: port for name, port, _ in _borrowed(pid, (http, grpc))}
    return {}


def can_end(pid: int) -> bool:
    """Tell whether the kernel lends us sockets of the server."""
    with suppress(OSError, AttributeError):
        for _ in _borrowed(pid, ()):
            pass
        return True
    return False


def end(pid: int, http: int, grpc: int, since: Mapping[str, int], died_at: float) -> int:
    """End those connections of `since` that may wait for a lost request; return how many.

    An HTTP connection carries one request at a time: one that was answered last, or that sent
    something after `died_at` (monotonic), waits for none that was lost.
    """
    ended = 0
    with suppress(OSError, AttributeError):
        for name, port, borrowed in _borrowed(pid, (http, grpc)):
            if name in since and not (port == http and _waits_for_nothing(borrowed, died_at)):
                with suppress(OSError):
                    borrowed.shutdown(socket.SHUT_RDWR)
                    ended += 1
    return ended


def _waits_for_nothing(borrowed: socket.socket, died_at: float) -> bool:
    told = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    (sent_ms,) = struct.unpack_from("I", told, LAST_DATA_SENT)
    (received_ms,) = struct.unpack_from("I", told, LAST_DATA_RECEIVED)
    since_death_ms = (time.monotonic() - died_at) * 1000
    return bool(sent_ms < received_ms or received_ms < since_death_ms)


def _borrowed(pid: int, ports: tuple[int, ...]) -> Iterator[tuple[str, int, socket.socket]]:
    """Lend the server's connected sockets on these ports. Raises OSError where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            name = ""
            with suppress(OSError):  # it was closed meanwhile
                name = os.readlink(entry.path)
            if not name.startswith("socket:"):
                continue
            number = libc.syscall(SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if number < 0:
                if ctypes.get_errno() in (9, 2, 3):  # EBADF, ENOENT, ESRCH: gone
                    continue
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            # one that listens has no peer
            with socket.socket(fileno=number) as borrowed, suppress(OSError):
                borrowed.getpeername()
                address = borrowed.getsockname()
                if isinstance(address, tuple) and address[1] in ports:
                    yield name, address[1], borrowed
    finally:
        os.close(process)
