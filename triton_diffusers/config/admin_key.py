# SPDX-License-Identifier: Apache-2.0
"""The key of a tritonserver's administrative calls: models, shared memory, logging, tracing.

`builder serve` starts tritonserver so that these are refused without it. For programs of the same
user on the same machine the key lies in a private file beside the shared memory, one per port; for
everybody else there is none, and what needs it does without.
"""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from triton_diffusers.contract import ADMIN_HEADER
from triton_diffusers.errors import ConfigError

SHARED_MEMORY_DIR = Path("/dev/shm")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1", "unix")
GRPC_PREFIX = "triton-grpc-protocol-"
"""Triton wants it before the name of a header that gRPC metadata carries."""
KEY = re.compile(r"[\w.~+/=-]{16,512}", re.ASCII)
RESTRICTED = re.compile(r"\b(api|protocol) is restricted\b", re.IGNORECASE)

Metadata = tuple[tuple[str, str], ...]


def new_key() -> str:
    """Draw a key."""
    return secrets.token_urlsafe(32)


def is_local(url: str) -> bool:
    """Tell whether a server's address is this machine, and this machine has /dev/shm."""
    host = url.split("/")[0]
    host = host.rpartition(":")[0] or host
    return host in LOCAL_HOSTS and SHARED_MEMORY_DIR.is_dir()


def is_refusal(message: str) -> bool:
    """Tell whether Triton refused a call because it lacks the key."""
    return RESTRICTED.search(message) is not None


def headers(url: str) -> dict[str, str]:
    """Return the HTTP header that administrative calls to a server need; {}: no key is known."""
    key = read_local(url)
    return {} if key is None else {ADMIN_HEADER: key}


def metadata(url: str) -> Metadata:
    """Return the same as gRPC metadata."""
    return as_metadata(read_local(url))


def as_metadata(key: str | None) -> Metadata:
    """Return a key as gRPC metadata."""
    return () if key is None else ((GRPC_PREFIX + ADMIN_HEADER, key),)


def read_local(url: str) -> str | None:
    """Return the key that a server on this machine left for its own user; None: there is none."""
    port = url.partition("/")[0].rpartition(":")[2]
    if not is_local(url) or not port.isdecimal():
        return None
    try:
        file = os.open(_local_file(int(port)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(file, encoding="ascii") as opened:
            text = opened.read(1024).strip()
    except (OSError, ValueError):
        return None
    return text if KEY.fullmatch(text) else None


def read_key_file(file: Path) -> str:
    """Return the key in a file: alone, or as the header that `curl -H @FILE` sends.

    Raises ConfigError.
    """
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no ASCII text"
        raise ConfigError(f"the admin key's file '{file}' cannot be read: {reason}") from None
    key = text.strip().removeprefix(f"{ADMIN_HEADER}:").strip()
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"the admin key's file '{file}' holds no key: it needs 16 or more letters, digits or "
            "-._~+/= on one line"
        )
    return key


def leave_local(key: str, *ports: int) -> None:
    """Leave the key of a server for programs of the same user. Raises OSError where that fails."""
    for port in ports:
        path = _local_file(port)
        path.unlink(missing_ok=True)
        write_private(path, key + "\n")


def remove_local(key: str, *ports: int) -> None:
    """Take the key away, unless another server's lies there by now."""
    for port in ports:
        with suppress(OSError):
            if read_local(f"localhost:{port}") == key:
                _local_file(port).unlink()


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises OSError, also where one is there."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "w", encoding="ascii") as opened:
        opened.write(text)


def _local_file(port: int) -> Path:
    return SHARED_MEMORY_DIR / f"triton-admin-key-{port}"
