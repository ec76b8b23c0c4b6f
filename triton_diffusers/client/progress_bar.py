# SPDX-License-Identifier: Apache-2.0
"""A bar on the terminal while a call runs: steps where the entry streams them, else seconds."""

from collections.abc import Iterator
from contextlib import contextmanager

from triton_diffusers.client.call import Progress


@contextmanager
def shown(wanted: bool, label: str, told: Progress | None) -> Iterator[Progress | None]:
    """Show a spinner with seconds, and a bar from the first step that is reported.

    told: is called too. Yields what to call with (step, total). Shows nothing where it is not
    wanted, and where stderr is neither a terminal nor a notebook.
    """
    if not wanted:
        yield told
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield told
        return
    spinner = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    steps = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*spinner, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def on_progress(step: int, total: int) -> None:
            bar.columns = (*steps, TimeElapsedColumn())
            bar.update(task, completed=step, total=total or None)
            if told is not None:
                told(step, total)

        yield on_progress
