# SPDX-License-Identifier: Apache-2.0
"""What diffusers and transformers say on stderr: kept out of the server's log, told to the caller.

The server's log is for operators: progress bars of loading and notices that nobody there can act
on make it unreadable, and some warnings of a call quote its prompt.
"""

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LIBRARIES = ("diffusers", "transformers")
NOISE = ("You have disabled the safety checker",)
LONGEST = 300
CAST_OF_NAN = "invalid value encountered in cast"
"""numpy's warning when diffusers makes pictures of NaN: they come out black."""
NAN_CAUSES = (
    "often the type of the weights (dtype) is too small, or a scheduler option does not fit"
)
BLACK = f"the pictures were made of NaN and are black: {NAN_CAUSES}"


def tell_of_nan(notes: Iterable[str]) -> bool:
    """Tell whether one of a call's notes says that its output held NaN."""
    return any(NAN_CAUSES in note for note in notes)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load a pipeline without progress bars and without notices that are not the operator's.

    transformers may not ask on the terminal whether to run a model's code: only trust_remote_code
    may allow it.
    """
    from diffusers.utils import logging as diffusers_logging
    from huggingface_hub import utils as hub_utils
    from transformers import dynamic_module_utils
    from transformers.utils import logging as transformers_logging

    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # seconds to wait for an answer; 0 refuses
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    hub_utils.disable_progress_bars()  # type: ignore[attr-defined]  # lazily exported
    handlers = [h for name in LIBRARIES for h in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(_is_no_noise)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_no_noise)


@contextmanager
def collected(notes: list[str]) -> Iterator[None]:
    """Add what diffusers and transformers warn of inside to `notes`, not to the log.

    Texts that they quote are left out. Of Python's warnings one counts: that pictures were made of
    NaN. Calls in other threads, or other greenlets, may collect at the same time.
    """
    token = _notes.set(notes)
    _collector.enter()
    try:
        yield
    finally:
        _collector.leave()
        _notes.reset(token)


_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)
"""Where warnings go, of this thread or greenlet."""


class _Collector(logging.Handler):
    """In place of the libraries' handlers, and of Python's warnings, while any thread collects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._guard = threading.Lock()
        self._collecting = 0
        self._before: list[list[logging.Handler]] = []
        self._caught: Any = None

    def enter(self) -> None:
        with self._guard:
            self._collecting += 1
            if self._collecting > 1:
                return
            loggers = [logging.getLogger(name) for name in LIBRARIES]
            self._before = [logger.handlers for logger in loggers]
            for logger in loggers:
                logger.handlers = [self]
            self._caught = warnings.catch_warnings()
            self._caught.__enter__()
            warnings.simplefilter("always")
            warnings.showwarning = self._on_warning

    def leave(self) -> None:
        with self._guard:
            self._collecting -= 1
            if self._collecting:
                return
            self._caught.__exit__(None, None, None)
            for name, handlers in zip(LIBRARIES, self._before, strict=True):
                logging.getLogger(name).handlers = handlers

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning of a library, shortened, once."""
        self._note(" ".join(record.getMessage().partition(": [")[0].split())[:LONGEST])

    def _on_warning(self, message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if CAST_OF_NAN in str(message):
            self._note(BLACK)

    def _note(self, text: str) -> None:
        notes = _notes.get()
        if notes is not None and text not in notes:
            notes.append(text)


_collector = _Collector()


def _is_no_noise(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NOISE)
