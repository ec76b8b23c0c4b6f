# SPDX-License-Identifier: Apache-2.0
"""Where a server is and how to reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triton_diffusers.client.errors import InvalidRequest

PROTOCOLS = ("grpc", "http")


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
    """Read the address that a caller gave; a scheme in front of it is taken as a hint to TLS."""
    if protocol not in PROTOCOLS:
        raise InvalidRequest(
            f"protocol '{protocol}' is not known. Accepted: {', '.join(PROTOCOLS)}."
        )
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme not in (protocol, protocol + "s"):
        raise InvalidRequest(f"url '{url}' does not fit protocol='{protocol}'.")
    return Address(
        rest.rstrip("/"), ssl or scheme == protocol + "s", root_certificates, headers or {}
    )
