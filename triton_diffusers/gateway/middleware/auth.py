# SPDX-License-Identifier: Apache-2.0
"""API keys: who may call. Without keys everybody may."""

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway.errors import ApiError, respond
from triton_diffusers.gateway.settings import Settings

LOG = logging.getLogger(__name__)

HASHED = "sha256:"
DIGEST = re.compile(r"[0-9a-fA-F]{64}")

OPEN = ("/", "/health", "/health/live", "/favicon.ico")
OPEN_FOLDER = "/page/"
"""What needs no key: the page, which asks for one, and probes. Nothing of these tells of calls."""


def is_open(path: str) -> bool:
    """Tell whether a path needs no key, and counts for no limit."""
    return path in OPEN or path.startswith(OPEN_FOLDER)


class Keys:
    """The keys that are accepted, as SHA-256 digests; the file is read again when it changes."""

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None):
        self._given = frozenset(_digest(key.encode()) for key in keys)
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._of_file: frozenset[bytes] = frozenset()
        if file is not None:
            self._stamp, self._of_file = _stamp(file), read_keys(file)

    def __bool__(self) -> bool:
        return bool(self._given) or self._file is not None

    def accept(self, key: bytes) -> bool:
        """Tell whether a key is one of them, in a time that tells nothing of the keys."""
        self._read_again()
        digest = _digest(key)
        found = [hmac.compare_digest(digest, known) for known in self._given | self._of_file]
        return any(found)

    def _read_again(self) -> None:
        """Follow the file. While it cannot be read, or is empty, none of its keys is accepted."""
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp != self._stamp:
                self._of_file, self._stamp = read_keys(self._file), stamp
        except ConfigError as error:
            if self._stamp is not None:
                LOG.warning("%s; its keys are not accepted", error)
            self._of_file, self._stamp = frozenset(), None


def read_keys(file: Path) -> frozenset[bytes]:
    """Read a file of keys: one a line, plain or as sha256:HEX; `#` begins a comment line.

    Raises ConfigError where it cannot be read, holds none, or a hash that is none.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ConfigError(f"api_keys_file: '{file}' cannot be read: {reason}") from None
    keys = [(n, line) for n, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_keys_file: '{file}' holds no keys; write one a line")
    return frozenset(_read_key(file, number, line) for number, line in keys)


def _read_key(file: Path, number: int, line: str) -> bytes:
    if not line.startswith(HASHED):
        return _digest(line.encode())
    text = line.removeprefix(HASHED).strip()
    if not DIGEST.fullmatch(text):
        raise ConfigError(
            f"api_keys_file: '{file}', line {number}: sha256: needs 64 hexadecimal digits, as "
            "`printf %s KEY | sha256sum` prints them"
        )
    return bytes.fromhex(text)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(file)
    except OSError as error:
        raise ConfigError(f"api_keys_file: '{file}' cannot be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def settings_keys(settings: Settings) -> Keys:
    """Return the keys that the settings name. Raises ConfigError."""
    given = (key.get_secret_value() for key in settings.api_keys)
    return Keys(given, settings.api_keys_file)


class Auth:
    """ASGI middleware: a request without a key that is accepted is answered with 401."""

    def __init__(self, app: ASGIApp, keys: Keys):
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] == "http" and self._keys and not is_open(scope["path"]):
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await respond(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key was sent; send the header 'Authorization: Bearer KEY'"
        elif not self._keys.accept(key.strip().encode("latin-1")):
            message = "the API key is not accepted; ask the operator of this gateway for one"
        else:
            return None
        challenge = {"WWW-Authenticate": 'Bearer realm="triton-diffusers"'}
        # its body is not read
        return ApiError(
            401, message, code="invalid_api_key", headers=challenge | {"Connection": "close"}
        )
