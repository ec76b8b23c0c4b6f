# SPDX-License-Identifier: Apache-2.0
"""An entry loaded without a server, as an instance of it would, in a process of its own.

That process tells a line of JSON at a time what happens, and ends with the pipe to us: whatever
becomes of it, our process lives, holds no weights, and says why.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.entries import repository
from builder.entries.config_pbtxt import parse_config
from triton_diffusers.errors import ConfigError

LOG, WARNING, LOADED, REFUSED = "log", "warning", "loaded", "refused"
START = "from builder.entries.trial import main; main()"
LAST_LINES = 3
SILENCE_S = 10.0
"""After so long without a line of progress a line says that it is still at it."""


@dataclass(frozen=True)
class Trial:
    """A load that went well: what it came to, and its warnings."""

    summary: str
    warnings: tuple[str, ...]


def try_load(folder: Path, timeout_s: float, tell: Callable[[str], None]) -> Trial:
    """Load an entry as one instance of it would, options that need trying included.

    tell: gets progress, a line at a time. Raises ConfigError with what the load would say.
    """
    warnings: list[str] = []
    process = _start(folder)
    started = time.monotonic()
    try:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        errors: list[str] = []
        reader = threading.Thread(target=_keep_last, args=(process.stderr, errors), daemon=True)
        reader.start()
        while True:
            left = started + timeout_s - time.monotonic()
            try:
                line = lines.get(timeout=min(max(0.0, left), SILENCE_S))
            except queue.Empty:
                if left <= SILENCE_S:
                    raise
                tell(f"{time.monotonic() - started:.0f} of at most {timeout_s:.0f} s")
                continue
            if line is None:
                reader.join(1.0)
                raise ConfigError(_why_ended(process, errors))
            ((what, text),) = json.loads(line).items()
            if what == LOADED:
                return Trial(text, tuple(warnings))
            if what == REFUSED:
                raise ConfigError(text)
            if what == WARNING:
                warnings.append(text)
            else:
                tell(text)
    except queue.Empty:
        raise ConfigError(
            f"it did not load within {timeout_s:.0f} s: give --timeout more, or look at what the "
            "last line of progress says it waits for"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", START, str(folder.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        start_new_session=True,
    )


def _read(stream: IO[bytes], lines: "queue.SimpleQueue[str | None]") -> None:
    with suppress(ValueError):  # closed while it is read
        for line in stream:
            lines.put(line.decode())
    lines.put(None)


def _keep_last(stream: IO[bytes], lines: list[str]) -> None:
    with suppress(ValueError):
        for line in stream:
            lines.append(line.decode(errors="replace").strip())
            del lines[:-LAST_LINES]


def _why_ended(process: "subprocess.Popen[bytes]", errors: list[str]) -> str:
    code = process.wait()
    last = " ".join(errors)
    if code == -signal.SIGKILL:
        return "its process was killed while it loaded, most likely for want of memory"
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"its process ended {how} while it loaded: {last or 'it said nothing'}"


def main() -> None:
    """Load the entry that the command line names, and tell of it on stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(what: str, text: str) -> None:
        print(json.dumps({what: text}), file=out, flush=True)

    from triton_diffusers.loading.entry import load_entry
    from triton_diffusers.running.info import describe_load

    try:
        loaded = load_entry(_arguments(Path(sys.argv[1])), lambda text: tell(LOG, text))
    except ConfigError as error:
        tell(REFUSED, str(error))
    else:
        for warning in loaded.warnings:
            tell(WARNING, warning)
        tell(LOADED, describe_load(loaded))
    os._exit(0)  # what was loaded need not be taken apart


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _arguments(folder: Path) -> dict[str, str]:
    """Return what Triton would pass to `initialize` of the first instance."""
    import torch
    from google.protobuf.json_format import MessageToDict

    message = parse_config(repository.read_config_text(folder))
    config: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    group: dict[str, Any] = next(iter(config.get("instance_group", [])), {})
    kind = group.get("kind", "KIND_AUTO").removeprefix("KIND_")
    if kind == "AUTO":
        kind = "GPU" if torch.cuda.is_available() else "CPU"
    return {
        "model_config": json.dumps(config),
        "model_repository": str(folder),
        "model_name": folder.name,
        "model_instance_kind": kind,
        "model_instance_device_id": str(next(iter(group.get("gpus", [])), 0)),
    }
