# SPDX-License-Identifier: Apache-2.0
"""Failures of a load by their type and by the words of those who raise them."""

from __future__ import annotations

import errno
import gc
import weakref
from typing import Any

import pytest

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.errors import component_of, explain_load
from triton_diffusers.pipelines.failures import causes, forget

CONFIG = ServeConfig(model="Qwen/Qwen-Image")


class OutOfMemoryError(RuntimeError):
    """Called as PyTorch calls its own: torch is not imported here."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


GPU = "does not fit the GPU's memory"
HOST = "does not fit the host's memory"
DISK = "is full"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), GPU),
        (RuntimeError("CUDA error: out of memory"), GPU),
        (RuntimeError("HIP out of memory"), GPU),
        (caused(ValueError("x"), OutOfMemoryError("y")), GPU),
        (MemoryError(), HOST),
        (RuntimeError("[enforce fail at x] DefaultCPUAllocator: can't allocate memory: y"), HOST),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), HOST),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), HOST),
        (RuntimeError("can't start new thread"), HOST),
        (OSError(errno.ENOSPC, "No space left on device"), DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK),
        (caused(OSError("x"), RuntimeError("xet: No space left on device (os error 28)")), DISK),
    ],
)
def test_what_is_wanting_is_named(error: BaseException, words: str) -> None:
    text = explain_load(error, CONFIG)
    assert words in text
    assert "'Qwen/Qwen-Image'" in text
    assert "\n" not in text


def test_other_errors_keep_their_words() -> None:
    text = explain_load(ValueError("a\n  b."), CONFIG)
    assert text == "model 'Qwen/Qwen-Image' does not load: ValueError: a b"


def test_a_chain_with_a_loop_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__context__ = second, first
    assert list(causes(first)) == [first, second]


class Weights:
    """Something large."""


def load(made: list[Any], init_dict: dict[str, Any]) -> None:
    name, weights = next(iter(init_dict)), Weights()
    made.append(weakref.ref(weights))
    try:
        raise OSError(f"first {name}")
    except OSError as error:
        raise ValueError(f"second {error} {weights}") from error


def test_what_a_failed_load_held_is_let_go() -> None:
    made: list[Any] = []
    with pytest.raises(ValueError, match="second") as caught:
        load(made, {"vae": 1})
    trace = caught.value.__traceback__
    while trace is not None:
        assert component_of(trace.tb_frame) is None
        _ = trace.tb_frame.f_locals  # as a debugger would: this leaves a copy
        trace = trace.tb_next
    assert made[0]() is not None
    forget(caught.value)
    gc.collect()
    assert made[0]() is None
