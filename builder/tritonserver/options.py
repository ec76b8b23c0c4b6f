# SPDX-License-Identifier: Apache-2.0
"""Options of tritonserver that `builder serve` sets itself."""

from collections.abc import Sequence
from pathlib import Path

from builder.tritonserver.installation import ServerError
from builder.tritonserver.ports import Ports
from triton_diffusers.config import admin_key
from triton_diffusers.contract import ADMIN_HEADER

ADMIN_APIS = ("model-repository", "shared-memory", "trace", "logging")
"""What Triton gives to everybody who reaches its ports: with the first, to run any Python here.

`statistics` stays open: it tells no more than /metrics, and perf_analyzer reads it.
"""

REGION_OPTION = "shm-region-prefix-name"
"""Of the Python backend: by it a server's shared memory is told from another's."""

HTTP_THREADS = 32
"""Each load call blocks one of them until the model is loaded, with the connections it serves."""
LOAD_THREADS = 16
"""More than models load side by side, so that none waits unseen inside of Triton."""

OWNED_OPTIONS = {
    "model-repository": "--repository",
    "model-store": "--repository",
    "http-port": "--http-port",
    "grpc-port": "--grpc-port",
    "metrics-port": "--metrics-port",
    "http-address": "--host",
    "grpc-address": "--host",
    "metrics-address": "--host",
    "load-model": "the names before the --",
    "model-control-mode": "none: it is always explicit",
    "allow-http": "none: models are loaded over HTTP",
    "exit-timeout-secs": "--exit-timeout",
    "backend-directory": "a tritonserver on PATH: it brings its own backends",
}
"""Triton options that `start_server` sets itself, and what to use instead."""


def triton_options(
    repository: Path, host: str, ports: Ports, exit_timeout_s: int, key: str
) -> list[str]:
    """Return the options with which a server serves entries, but for the entries to load."""
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        *(f"--{kind}-address={host}" for kind in ("http", "grpc", "metrics")),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        f"--exit-timeout-secs={exit_timeout_s}",
        f"--http-thread-count={HTTP_THREADS}",
        f"--model-load-thread-count={LOAD_THREADS}",
        *restricted(key),
    ]


def restricted(key: str) -> list[str]:
    """Return the options with which administrative calls are refused without a key."""
    value = f"{','.join(ADMIN_APIS)}:{ADMIN_HEADER}={key}"
    return [f"--http-restricted-api={value}", f"--grpc-restricted-protocol={value}"]


def read_or_write_key(file: Path) -> str:
    """Return the key of an operator's file; one that is not there is written with a new key.

    Raises ServerError where it cannot be written, ConfigError where it cannot be read.
    """
    if not file.exists():
        try:
            admin_key.write_private(file, f"{ADMIN_HEADER}: {admin_key.new_key()}\n")
        except OSError as error:
            raise ServerError(
                f"--admin-key-file '{file}' cannot be written: {error.strerror}"
            ) from None
    return admin_key.read_key_file(file)


def hide_key(pid: int, key: str) -> None:
    """Overwrite the key in a server's command line, which everybody on the machine can read.

    The server has read its options by then. Where the kernel does not let us, it stays there.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(end - start)
            at = words.find(key.encode())
            while at >= 0:
                memory.seek(start + at)
                memory.write(b"*" * len(key))
                at = words.find(key.encode(), at + len(key))
    except (OSError, ValueError, IndexError):
        return


def refuse_owned(extra: Sequence[str]) -> None:
    """Refuse Triton options that would contradict ours."""
    for option in extra:
        if REGION_OPTION in option:
            raise ServerError(f"{REGION_OPTION} is set by builder serve; leave it out")
        name = option.lstrip("-").partition("=")[0]
        if name in OWNED_OPTIONS:
            raise ServerError(f"--{name} is set by builder serve; use {OWNED_OPTIONS[name]}")
