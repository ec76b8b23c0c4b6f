# SPDX-License-Identifier: Apache-2.0
"""The command line that starts the same tritonserver without `builder serve`: to read, or to run.

The wheel's binary needs its backend in a layout of links, which is kept in the user's cache.
"""

import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.tritonserver import installation
from builder.tritonserver.installation import ServerError
from builder.tritonserver.options import refuse_owned, triton_options
from builder.tritonserver.ports import Ports, choose_ports

VARIABLES = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""What tells the server and its stubs where their libraries and packages are. Others, such as
HF_HOME and tokens, are those of the shell that runs the line."""


def bare_command(
    repository: Path,
    names: Sequence[str],
    *,
    host: str,
    ports: Ports,
    exit_timeout_s: int,
    extra: Sequence[str],
    key: str,
) -> str:
    """Return one line for a shell. Raises ServerError where no server is installed."""
    refuse_owned(extra)
    binary = installation.find()
    cache = cache_folder()
    env = installation.environment(binary)
    words = [
        "env",
        *(f"{name}={_absolute(env[name])}" for name in VARIABLES if env.get(name)),
        *installation.command(binary, cache),
        *triton_options(_linked(repository.resolve(), cache), host, ports, exit_timeout_s, key),
        *(f"--load-model={name}" for name in names),
        *extra,
    ]
    return shlex.join(words)


def cache_folder() -> Path:
    """Return the folder of what a bare command needs beside itself, made where it is missing.

    It is the user's alone, and its path has no spaces: Triton splits there what it hands to stubs.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve()
    folder = home / "triton-diffusers" / "tritonserver"
    if _has_space(folder):
        folder = Path(tempfile.gettempdir()).resolve() / f"triton-diffusers-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise ServerError(f"'{folder}' cannot be made: {error.strerror}") from None
    if owner != os.getuid() or _has_space(folder):
        raise ServerError(
            f"'{folder}' is another user's, or has a space: set XDG_CACHE_HOME to another folder"
        )
    return folder


def free_ports(host: str, wanted: Ports) -> Ports:
    """Return the ports with every 0 replaced; one that is busy now may be free when it is used."""
    free = choose_ports(host, Ports(0, 0, 0))
    return Ports(wanted.http or free.http, wanted.grpc or free.grpc, wanted.metrics or free.metrics)


def _absolute(paths: str) -> str:
    return os.pathsep.join(os.path.abspath(path) for path in paths.split(os.pathsep) if path)


def _has_space(path: Path) -> bool:
    return re.search(r"\s", str(path)) is not None


def _linked(repository: Path, cache: Path) -> Path:
    """Return a path to the repository without spaces."""
    if not _has_space(repository):
        return repository
    link = cache / f"repository-{hashlib.sha256(str(repository).encode()).hexdigest()[:12]}"
    if not link.is_symlink():
        link.symlink_to(repository, target_is_directory=True)
    return link
