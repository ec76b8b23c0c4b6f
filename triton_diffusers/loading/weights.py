# SPDX-License-Identifier: Apache-2.0
"""from_pretrained(), watched: fetched first, checked against the memory, timed, told to the log."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.progress import Log, download_progress, loading_progress
from triton_diffusers.loading.report import LoadReport, timed_loading
from triton_diffusers.placement.host_memory import check_host_memory, weights_of

LOAD_CONNECTED = "load_connected_pipeline"


@contextmanager
def one_shard_at_a_time() -> Iterator[None]:
    """Hold parallel loading back: files that are read rather than mapped would all be in memory.

    Without low_cpu_mem_usage diffusers refuses to load in parallel.
    """
    from diffusers.models import modeling_utils

    before = modeling_utils.HF_ENABLE_PARALLEL_LOADING
    modeling_utils.HF_ENABLE_PARALLEL_LOADING = False
    try:
        yield
    finally:
        modeling_utils.HF_ENABLE_PARALLEL_LOADING = before


def fetch(cls: Any, model: str, kwargs: Mapping[str, Any], log: Log) -> Path:
    """Download a model of the hub as from_pretrained() would; return its folder."""
    cache = kwargs.get("cache_dir")
    with download_progress(log, model, Path(cache) if cache else None):
        return Path(cls.download(model, **kwargs))


def load_watched(
    cls: Any,
    folder: Path,
    index: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    log: Log,
    *,
    stays_on_cpu: bool,
) -> tuple[Any, LoadReport, list[str]]:
    """Return the pipeline of from_pretrained(), what it took, and warnings.

    index: model_index.json. stays_on_cpu: nothing is moved to another device afterwards.
    Raises ConfigError for a model that exceeds the host's memory, and what diffusers raises.
    """
    if not kwargs.get("trust_remote_code"):
        _refuse_own_code(folder, index)
    notes = check_host_memory(folder, index, kwargs, stays_on_cpu=stays_on_cpu)
    copied = sum(size.copied for size in weights_of(folder, index, kwargs).values())
    in_turn = kwargs.get("disable_mmap") or kwargs.get("low_cpu_mem_usage") is False
    shards = one_shard_at_a_time() if in_turn else nullcontext()
    loader = _loader(cls, index, kwargs)
    kwargs = _left_out(cls, index) | dict(kwargs)
    with timed_loading() as times, loading_progress(log, copied), shards:
        pipeline = loader.from_pretrained(str(folder), **kwargs)
    return pipeline, times.report(pipeline), notes


def _loader(cls: Any, index: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the class that users load with: DiffusionPipeline where the model names its class.

    Connected pipelines are left to the class itself: with DiffusionPipeline another one comes.
    """
    import diffusers

    named = index.get("_class_name")
    is_own = named == cls.__name__ and cls is getattr(diffusers, cls.__name__, None)
    return diffusers.DiffusionPipeline if is_own and LOAD_CONNECTED not in kwargs else cls


def _left_out(cls: Any, index: Mapping[str, Any]) -> dict[str, None]:
    """Return the components that model_index.json leaves null, as from_pretrained() takes them.

    Of those that a class does not call optional it wants to be told so.
    """
    expected, _ = cls._get_signature_keys(cls)
    empty = {name for name, value in index.items() if value in (None, [None, None])}
    return dict.fromkeys(sorted(empty & set(expected) - set(cls._optional_components)))


def _refuse_own_code(folder: Path, index: Mapping[str, Any]) -> None:
    """Raise ConfigError for a component that brings its class along: older diffusers runs it."""
    for name, value in index.items():
        part = folder / name
        if name.startswith("_") or not isinstance(value, list) or not part.is_dir():
            continue
        inner = part / "model_index.json"  # a pipeline as a component has a class of its own
        modules = [value[0], *re.findall(r"[\w.]+", inner.read_text() if inner.is_file() else "")]
        for module in dict.fromkeys(m for m in modules if isinstance(m, str)):
            if (part / f"{module}.py").is_file():
                raise ConfigError(
                    f"component '{name}' of model '{folder}' brings its own code ({module}.py), "
                    "which runs with the server's rights: read it, then set trust_remote_code to "
                    "true"
                )
