# SPDX-License-Identifier: Apache-2.0
"""Where a server is and how to reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triton_diffusers.client.errors import InvalidRequest

PORTS = {"grpc": 8001, "http": 8000}
"""Protocol -> the port that Triton gives it by default."""

PROTOCOLS = tuple(PORTS)
SPELLED = {"grpc": "gRPC", "http": "HTTP"}


@dataclass(frozen=True)
class Address:
    """A server's address: `url` is host:port, for HTTP with an optional path behind it."""

    url: str
    ssl: bool = False
    root_certificates_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers as gRPC takes them."""
        return tuple((name.lower(), value) for name, value in self.headers.items())

    def root_certificates(self) -> bytes | None:
        """Return the PEM certificates to trust; None: those of the system."""
        path = self.root_certificates_file
        return None if path is None else Path(path).read_bytes()


def read_address(
    url: str,
    protocol: str,
    ssl: bool,
    root_certificates: str | None,
    headers: Mapping[str, str] | None,
) -> Address:
    """Read the address that a caller gave; a scheme in front of it is taken as a hint to TLS.

    Without a port it is the protocol's default port; with TLS 443, where proxies listen.
    """
    if protocol not in PROTOCOLS:
        raise InvalidRequest(
            f"protocol '{protocol}' is not known. Accepted: {', '.join(PROTOCOLS)}."
        )
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme not in (protocol, protocol + "s"):
        raise InvalidRequest(_misfit(url, protocol, scheme, rest))
    ssl = ssl or scheme == protocol + "s"
    where = _with_port(rest.rstrip("/"), 443 if ssl else PORTS[protocol])
    return Address(where, ssl, root_certificates, headers or {})


def other_protocol(protocol: str) -> str:
    """Say what to write where a port does not speak `protocol` but the other one."""
    (other,) = set(PROTOCOLS) - {protocol}
    return (
        f"the {SPELLED[protocol]} port ({PORTS[protocol]} by default), "
        f"or protocol='{other}' with the {SPELLED[other]} port ({PORTS[other]} by default)"
    )


def _with_port(address: str, port: int) -> str:
    """Add the port where an address has none; `[::1]` has none, `unix:` and `::1` stay."""
    host, slash, path = address.partition("/")
    bare = host.endswith("]") if host.startswith("[") else ":" not in host
    return f"{host}:{port}{slash}{path}" if bare else address


def _misfit(url: str, protocol: str, scheme: str, rest: str) -> str:
    (other,) = set(PROTOCOLS) - {protocol}
    host = rest.partition("/")[0]
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    instead = f", or use protocol='{other}'" if scheme in (other, other + "s") else ""
    return (
        f"url '{url}' does not fit protocol='{protocol}': write "
        f"'{_with_port(name, PORTS[protocol])}' (the {SPELLED[protocol]} port){instead}."
    )
