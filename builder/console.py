# SPDX-License-Identifier: Apache-2.0
"""What the operator sees: results on stdout, warnings and a spinner on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str = "") -> None:
    """Print a result."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print a warning, on one line."""
    print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Print how far something slow is, on one line."""
    print(f"  {' '.join(text.split())}", file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """Print why a command failed, on one line."""
    print(f"error: {' '.join(text.split())}", file=sys.stderr, flush=True)


_spinning = False


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a spinner with seconds while something slow runs; nothing when stderr is a file.

    Inside of another one it shows nothing: the outer one tells what runs.
    """
    global _spinning
    if _spinning or not sys.stderr.isatty():
        yield
        return
    _spinning = True
    try:
        with _spinner(text):
            yield
    finally:
        _spinning = False


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text)
        yield
