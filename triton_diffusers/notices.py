# SPDX-License-Identifier: Apache-2.0
"""What diffusers and transformers say on stderr: kept out of the server's log, told to the caller.

The server's log is for operators: progress bars of loading and notices that nobody there can act
on make it unreadable, and some warnings of a call quote its prompt.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LIBRARIES = ("diffusers", "transformers")
NOISE = ("You have disabled the safety checker",)
LONGEST = 300
CAST_OF_NAN = "invalid value encountered in cast"
"""numpy's warning when diffusers makes pictures of NaN: they come out black."""
NAN_CAUSES = (
    "often the type of the weights (dtype) is too small, or a scheduler option does not fit"
)
BLACK = f"the pictures were made of NaN and are black: {NAN_CAUSES}"


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load a pipeline without progress bars and without notices that are not the operator's."""
    from diffusers.utils import logging as diffusers_logging
    from huggingface_hub import utils as hub_utils
    from transformers.utils import logging as transformers_logging

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
    """Add what diffusers and transformers warn of to `notes` instead of the log.

    For one call at a time: the handlers are the process's. Texts that they quote are left out. Of
    Python's warnings one counts: that pictures were made of NaN.
    """
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [logger.handlers for logger in loggers]
    collector = _Collector(notes)
    for logger in loggers:
        logger.handlers = [collector]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers = handlers
        if any(CAST_OF_NAN in str(warning.message) for warning in caught):
            notes.append(BLACK)


class _Collector(logging.Handler):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().partition(": [")[0].split())[:LONGEST]
        if text not in self._notes:
            self._notes.append(text)


def _is_no_noise(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NOISE)
