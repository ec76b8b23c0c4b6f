# SPDX-License-Identifier: Apache-2.0
"""Negative prompts that a tokenizer cuts are told; pipelines themselves tell of positive ones.

The tokenizers of a call's own copy of the pipeline are watched: the text that one is given says
which prompt it is, its own `max_length` where it ends.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from triton_diffusers.pipelines.isolation import pipelines_inside

WATCH = "_watch_truncation"


def watch_negative_prompts(
    pipeline: Any, prompts: Mapping[str, Any], tell: Callable[[str], None]
) -> None:
    """Tell of each negative prompt that the tokenizers of a call's copy cut, once.

    prompts: the texts of the call by parameter, each a text or a list.
    """
    texts = {
        _plain(text): name
        for name, value in sorted(prompts.items(), key=lambda item: "neg" not in item[0])
        for text in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(text, str) and text.strip()
    }
    if not any("neg" in name for name in texts.values()):
        return
    watch = functools.partial(_tell_if_cut, texts, set(), tell)
    for part in (pipeline, *pipelines_inside(pipeline)):
        for name, component in list(vars(part).items()):
            if isinstance(component, _tokenizers()):
                vars(part)[name] = _watched(component, watch)


def _watched(tokenizer: Any, watch: Callable[..., None]) -> Any:
    """Return a shallow copy of a tokenizer that shows what it is called with."""
    cls = _of_watched(type(tokenizer))  # type: ignore[arg-type]  # it is hashable
    copy = cls.__new__(cls)
    vars(copy).update(vars(tokenizer), **{WATCH: watch})
    return copy


@functools.cache
def _of_watched(cls: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        encoded = cls.__call__(self, *args, **kwargs)
        vars(self)[WATCH](functools.partial(cls.__call__, self), self, args, kwargs)
        return encoded

    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__})


def _tell_if_cut(
    prompts: Mapping[str, str],
    told: set[str],
    tell: Callable[[str], None],
    tokenize: Callable[..., Any],
    tokenizer: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Compare what a tokenizer was given with what it keeps.

    prompts: the call's texts without case and spaces, as pipelines may clean them -> parameter.
    """
    given = args[0] if args else kwargs.get("text")
    limit = kwargs.get("max_length") or tokenizer.model_max_length
    if not kwargs.get("truncation"):
        return
    for text in given if isinstance(given, list | tuple) else (given,):
        if not isinstance(text, str):
            return
        plain = _plain(text)
        inside = max((p for p in prompts if p in plain), key=len, default="")
        name = prompts.get(inside, "")
        if "neg" not in name or name in told:
            continue
        special = kwargs.get("add_special_tokens", True)
        count = len(tokenize(text, add_special_tokens=special, verbose=False)["input_ids"])
        if count > limit:
            told.add(name)
            tell(
                f"part of '{name}' was truncated because its tokenizer can only handle sequences "
                f"up to {limit} tokens, and it has {count}"
            )


def _plain(text: str) -> str:
    return "".join(text.casefold().split())


@functools.cache
def _tokenizers() -> tuple[type, ...]:
    from transformers import PreTrainedTokenizerBase

    return (PreTrainedTokenizerBase,)
