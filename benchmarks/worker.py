# SPDX-License-Identifier: Apache-2.0
"""Child processes that do one job a line: JSON in, JSON out. Between jobs they wait and do nothing.

The callers run in one and the plain pipeline in another, so that neither shares an interpreter
with what is measured.
"""

import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class Worker:
    """A child process; a context manager that ends it."""

    def __init__(self, module: str, log: Path) -> None:
        """`log` gets what libraries print, which would hide the results."""
        self._log = log
        command = [sys.executable, "-m", module]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, **pipes, stderr=file, text=True, start_new_session=True
            )
        self.pid = self._process.pid

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        if error[0] is not None:
            self._process.kill()
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def ask(self, what: str, timeout_s: float = 900, **arguments: Any) -> Any:
        """Let the child call one of its functions; return what that returned."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise SystemExit(f"{what} did not end within {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(30)
            raise SystemExit(f"the process of {what} ended with {code}:\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self._tail()}\n{what} failed:\n{answer['error']}")
        return answer["result"]

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def cpu_s(group: int) -> float:
    """Return the processor seconds that the live processes of a group have used.

    Unlike a rate they hardly depend on what else the machine does.
    """
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            # fields after the name, which may hold spaces: group third, user and system 12th, 13th
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def work(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        what, arguments = json.loads(line)
        try:
            answer = {"result": functions[what](**arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
