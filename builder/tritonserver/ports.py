# SPDX-License-Identifier: Apache-2.0
"""The ports of a server: free ones chosen, busy ones refused before anything is started."""

import socket
from dataclasses import asdict, dataclass

from builder.tritonserver.installation import ServerError

BACKLOG = 2048
"""Connections that wait to be accepted."""


@dataclass(frozen=True)
class Ports:
    """Where a server listens; 0 is a free one."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


def choose_ports(host: str, wanted: Ports) -> Ports:
    """Return the ports with every 0 replaced by a free one.

    Raises ServerError for a busy one, or for one that is wanted twice.
    """
    _refuse_same(wanted)
    chosen: dict[str, int] = {}
    held: list[socket.socket] = []
    try:
        for kind in ("http", "grpc", "metrics"):
            held.append(bind(host, getattr(wanted, kind), kind, f"--{kind}-port"))
            chosen[kind] = held[-1].getsockname()[1]
    finally:
        for bound in held:
            bound.close()
    return Ports(**chosen)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host that a server listens on."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _refuse_same(wanted: Ports) -> None:
    kinds: dict[int, str] = {}
    for kind, port in asdict(wanted).items():
        if port and port in kinds:
            raise ServerError(
                f"--{kinds[port]}-port and --{kind}-port are both {port}: choose two ports"
            )
        kinds[port] = kind


def bind(host: str, port: int, kind: str, option: str) -> socket.socket:
    """Return a socket that listens; port 0 is a free one.

    Raises ServerError that says to choose another one with `option`.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        bound.close()
        raise ServerError(
            f"port {port} ({kind}) cannot be used on {host}: "
            f"{getattr(error, 'strerror', None) or error}; "
            f"stop what uses it or choose another with {option}"
        ) from None
    return bound
