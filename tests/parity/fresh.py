# SPDX-License-Identifier: Apache-2.0
"""Run a function in a fresh process that has already imported torch and diffusers.

The fork server imports them once (5-10 s); every call gets a fork of it, which has drawn no
random number and loaded no pipeline.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

PRELOAD = [
    "torch",
    "diffusers",
    "diffusers.models",
    "diffusers.pipelines.pipeline_utils",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
    "diffusers.pipelines.flux.pipeline_flux",
    "transformers.models.clip.modeling_clip",
    "transformers.models.t5.modeling_t5",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
]

_LOCK = threading.Lock()
_STARTED = threading.Event()


class ChildError(Exception):
    """What the function raised: "Type: text". `trace` is its traceback as text."""

    def __init__(self, text: str, trace: str = ""):
        super().__init__(text)
        self.trace = trace


def call_fresh(function: Callable[..., Any], *arguments: Any, timeout_s: float = 300) -> Any:
    """Return `function(*arguments)` of a fresh process; both must be picklable.

    Raises ChildError for what it raised, for a process that died and after `timeout_s`.
    """
    context = multiprocessing.get_context("forkserver")
    _start_fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout_s):
            raise ChildError(f"no result within {timeout_s:.0f} s")
        value, error, trace = ours.recv()
    except EOFError:
        process.join(10)
        raise ChildError(f"the process died with exit code {process.exitcode}") from None
    finally:
        ours.close()
        _end(process)
    if error is not None:
        raise ChildError(error, trace)
    return value


def _start_fork_server() -> None:
    """Start it, once, without an output: every import has something to say."""
    with _LOCK:
        if _STARTED.is_set():
            return
        _STARTED.set()
        forkserver.set_forkserver_preload(PRELOAD)
        kept = os.dup(1), os.dup(2)
        silent = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            forkserver.ensure_running()
        finally:
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
            for opened in (silent, *kept):
                os.close(opened)


def _end(process: Any) -> None:
    process.join(5)
    process.kill()
    process.join(10)


def _run(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((function(*arguments), None, ""))
    except BaseException as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        connection.send((None, text, traceback.format_exc()))


def run_command(main: Callable[[list[str]], int], argv: list[str]) -> tuple[int, str]:
    """Return a command's exit code and what it printed. For `call_fresh`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(argv)
    return code, printed.getvalue()
