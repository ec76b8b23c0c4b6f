# SPDX-License-Identifier: Apache-2.0
"""Run as a script: becomes tritonserver, which ends with the program that started it, kill -9 too.

A watch, which is nobody's child, reads a pipe whose other end that program holds. When it closes
without a word, the program is gone, and the watch ends the server's process group and removes what
both leave behind. The kernel's own means (PR_SET_PDEATHSIG) comes on top where it can be had: it
ends the server with the *thread* that started it, so only the main one's servers get it.

launch.py PIPE THREAD COMMAND...: the pipe's number, and 1 where the main thread started this.
launch.py PIPE watch GROUP: the watch of a process group.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
ENDED = b"ended\n"
WATCH = "watch"
ROOT = Path(__file__).parents[2]
"""Where the packages lie that the watch needs."""


class Leash:
    """The program's end of the pipe: while it is open, the server may live."""

    def __init__(self, pipe: int, leftovers: "Leftovers") -> None:
        self._pipe = pipe
        with suppress(OSError):  # it ended already
            os.write(pipe, leftovers.to_line())

    def let_go(self) -> None:
        """Tell the watch that the server has ended and nothing is left."""
        if self._pipe >= 0:
            with suppress(OSError):
                os.write(self._pipe, ENDED)
            os.close(self._pipe)
            self._pipe = -1


class Leftovers:
    """What a server leaves behind that nobody else would remove."""

    def __init__(self, regions: str, paths: Sequence[Path], key: str, ports: Sequence[int]) -> None:
        self.regions, self.key, self.ports = regions, key, list(ports)
        self.paths = [str(path) for path in paths]

    def to_line(self) -> bytes:
        """Return them as they travel through the pipe."""
        return json.dumps(vars(self)).encode() + b"\n"

    def remove(self) -> None:
        """Remove shared memory, folders and the key's files."""
        from builder.tritonserver import stubs
        from triton_diffusers.config import admin_key

        stubs.remove_regions(self.regions)
        admin_key.remove_local(self.key, *self.ports)
        for path in map(Path, self.paths):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def launch(
    command: Sequence[str], leftovers: Leftovers, **options: Any
) -> "tuple[subprocess.Popen[bytes], Leash]":
    """Start a server that ends with this program, in a process group of its own."""
    theirs, ours = os.pipe()
    in_main = int(threading.current_thread() is threading.main_thread())
    script = [sys.executable, "-I", "-S", __file__, str(theirs), str(in_main)]
    try:
        process = subprocess.Popen(
            [*script, *command], pass_fds=[theirs], start_new_session=True, **options
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, Leash(ours, leftovers)


def main(pipe: int, in_main_thread: bool, command: list[str]) -> None:
    """Leave the watch behind and become the server."""
    group = os.getpid()
    starter = os.getppid()
    middle = os.fork()
    if not middle:
        # an orphan: the server must not have a child that it knows nothing of
        if not os.fork():
            _detach()
            # anew: this one's command line has the server's key, for as long as it lives
            again = [sys.executable, "-I", "-S", __file__, str(pipe), WATCH, str(group)]
            os.execv(again[0], again)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(pipe)
    if in_main_thread:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # it ended meanwhile
            os._exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"error: {command[0]} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _detach() -> None:
    """Leave the server's group, its log and the folder; signals of a terminal are for others."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir("/")


def _watch(pipe: int, group: int) -> None:
    """Wait for the end of the program; never returns."""
    try:
        with open(pipe, "rb") as file:
            told = file.read().splitlines(keepends=True)
        if told[-1:] != [ENDED]:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            sys.path.insert(0, str(ROOT))
            if told:
                Leftovers(**json.loads(told[0])).remove()
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[2] == WATCH:
        _watch(int(sys.argv[1]), int(sys.argv[3]))
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
