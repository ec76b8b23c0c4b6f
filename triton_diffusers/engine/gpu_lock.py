# SPDX-License-Identifier: Apache-2.0
"""`gpu_lock`: entries of one name run one call at a time, whichever processes serve them.

Those who wait stand in a queue of files, numbered as they came. Each holds the system's lock of its
own file, which ends with its process: a number whose file nobody holds is passed over and removed.
The first of the queue has the turn. All look at the queue under a guard, for moments.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from triton_diffusers.errors import ConfigError

POLL_S = 0.005
GUARD = "guard"


class GpuLock:
    """One name's lock. Every process that names it makes its own."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        """root: where the queues of all names are. Raises ConfigError where it is not private."""
        self._folder = _private_folder(root or _root()) / name
        self._folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def held(self, is_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn and have it until the end of the block, in the order of asking.

        is_wanted: asked again and again. Yields False, without the turn, once it says no.
        """
        place: tuple[Path, int] | None = None
        try:
            while True:
                with self._guarded() as is_ours:
                    if is_ours:
                        place = place or self._line_up()
                        if self._is_first(place[0]):
                            break
                if not is_wanted():
                    yield False
                    return
                time.sleep(POLL_S)
            yield True
        finally:
            if place is not None:
                place[0].unlink(missing_ok=True)
                os.close(place[1])

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Hold the guard if it is free. Nobody waits for it: its holder may be stopped."""
        descriptor = os.open(self._folder / GUARD, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def _line_up(self) -> tuple[Path, int]:
        path = self._folder / f"{max(map(int, self._numbers()), default=0) + 1:012}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        _lock(descriptor, fcntl.LOCK_EX)
        return path, descriptor

    def _is_first(self, path: Path) -> bool:
        return not any(self._is_held(n) for n in self._numbers() if n < path.name)

    def _is_held(self, number: str) -> bool:
        """Tell whether the process behind a number lives; remove the number of one that died."""
        path = self._folder / number
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _lock(descriptor, fcntl.LOCK_SH):
                return True
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def _numbers(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if name != GUARD)


def _lock(descriptor: int, kind: int) -> bool:
    """Take the system's lock of a file, if it is free; it ends with the process."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _root() -> Path:
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    return base / f"triton-gpu-locks-{os.getuid()}"


def _private_folder(path: Path) -> Path:
    """Make a folder that only its user can enter; refuse one that others have made."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"parameter 'gpu_lock': {path} is not a folder of this user alone (mode 0700); remove "
            "it, or give it back to the user that runs tritonserver"
        )
    return path
