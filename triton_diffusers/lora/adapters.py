# SPDX-License-Identifier: Apache-2.0
"""`lora`: adapters that are loaded with the model and stay on it."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.lora.text_encoders import named_for
from triton_diffusers.pipelines.failures import refused_pickle
from triton_diffusers.pipelines.model_files import find_path, is_path
from triton_diffusers.pipelines.notices import collected
from triton_diffusers.pipelines.packages import install

LORA_FILE = "pytorch_lora_weights"
NOT_LORA = ("scheduler", "optimizer", "checkpoint")
"""Words in names of files that load_lora_weights() passes over."""
KEYS = ("path", "weight_name", "scale", "adapter_name")


@dataclass(frozen=True)
class Adapter:
    """One LoRA: where it is, and how strongly it works."""

    path: str
    name: str
    weight_name: str | None = None
    scale: float = 1.0


def read_adapters(config: ServeConfig) -> tuple[Adapter, ...]:
    """Return the adapters of an entry. Raises ConfigError for keys and values of a wrong form."""
    given = config.lora
    items = given if isinstance(given, list) else [] if given is None else [given]
    if given == []:
        raise ConfigError("parameter 'lora' is an empty list: name an adapter, or remove it")
    adapters = tuple(_read(item, index) for index, item in enumerate(items))
    names = [adapter.name for adapter in adapters]
    if len(set(names)) < len(names):
        raise ConfigError(f"parameter 'lora': two adapters are called the same ({sorted(names)})")
    return adapters


def _read(item: Any, index: int) -> Adapter:
    given = {"path": item} if isinstance(item, str) else item
    if not isinstance(given, dict) or not isinstance(given.get("path"), str) or not given["path"]:
        raise ConfigError(
            'parameter \'lora\': each adapter is a path, or {"path": TEXT, "weight_name": TEXT, '
            '"scale": NUMBER, "adapter_name": TEXT}'
        )
    for key in given:
        if key not in KEYS:
            raise ConfigError("parameter 'lora': " + unknown("key", key, "an adapter", KEYS))
    scale = given.get("scale", 1.0)
    texts = [given.get(key, "") for key in ("weight_name", "adapter_name")]
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ConfigError(f"parameter 'lora': scale {scale!r} is not a number")
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("parameter 'lora': weight_name and adapter_name are texts")
    name = given.get("adapter_name") or f"lora_{index}"
    return Adapter(given["path"], name, given.get("weight_name"), float(scale))


def check_lora(config: ServeConfig, entry: Path, cls: Any) -> None:
    """Raise ConfigError where adapters cannot load: no peft, a class that has none, no file."""
    adapters = read_adapters(config)
    if not adapters:
        return
    if not hasattr(cls, "load_lora_weights"):
        raise ConfigError(f"parameter 'lora' has no effect on {cls.__name__}: it takes none")
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(f"parameter 'lora' needs the package peft; {install('peft')}")
    for adapter in adapters:
        path = find_path("lora", adapter.path, entry)
        _check_file(adapter, path)
        _check_folder(adapter, path)


def _check_file(adapter: Adapter, path: Path | None) -> None:
    """Raise ConfigError for a path that is not there, and for a file that is named twice."""
    if path is None and is_path(adapter.path):
        raise ConfigError(
            f"parameter 'lora': '{adapter.path}' does not exist; give a file, a folder or a hub id"
        )
    if path is not None and path.is_file() and adapter.weight_name not in (None, path.name):
        raise ConfigError(
            f"parameter 'lora': '{adapter.path}' is a file already; remove weight_name"
        )


def _check_folder(adapter: Adapter, folder: Path | None) -> None:
    """Check that a local folder leaves no doubt which file is the adapter."""
    if folder is None or not folder.is_dir():
        return
    files = _lora_files(folder)
    where = f"parameter 'lora': '{adapter.path}'"
    if adapter.weight_name is not None:
        if not (folder / adapter.weight_name).is_file():
            raise ConfigError(
                "parameter 'lora': "
                + unknown("weight_name", adapter.weight_name, f"'{adapter.path}'", files)
            )
    elif not files:
        raise ConfigError(f"{where} holds no .safetensors or .bin file; name the adapter's file")
    elif len(files) > 1:
        raise ConfigError(
            f"{where} holds several files: {', '.join(files)}; say which one: "
            f'{{"path": "{adapter.path}", "weight_name": "{files[0]}"}}'
        )


def _lora_files(folder: Path) -> list[str]:
    """Return the files of which load_lora_weights() would take the first, in no certain order.

    Source: diffusers.loaders.lora_base._best_guess_weight_name.
    """
    for suffix in (".safetensors", ".bin"):
        names = sorted(f.name for f in folder.glob(f"*{suffix}"))
        names = [name for name in names if not any(word in name for word in NOT_LORA)]
        if names:
            return [name for name in names if name.endswith(LORA_FILE + suffix)] or names
    return []


def load_lora(pipeline: Any, config: ServeConfig, entry: Path, notes: list[str]) -> dict[str, int]:
    """Load the adapters; return adapter name -> number of layers that it changes.

    Adds to `notes` what diffusers says about weights that it does not know. Raises ConfigError
    where an adapter does not load or changes no layer.
    """
    adapters = read_adapters(config)
    if not adapters:
        return {}
    said: list[str] = []
    with collected(said):
        changed = {adapter.name: _load(pipeline, adapter, entry) for adapter in adapters}
        pipeline.set_adapters([a.name for a in adapters], [a.scale for a in adapters])
    notes += [f"lora: {text}" for text in said if "unexpected key" in text.lower()]
    return changed


def _load(pipeline: Any, adapter: Adapter, entry: Path) -> int:
    from huggingface_hub import constants

    path = find_path("lora", adapter.path, entry)
    source = adapter.path if path is None else path.parent if path.is_file() else path
    file = path.name if path is not None and path.is_file() else adapter.weight_name
    kwargs = {} if file is None else {"weight_name": file}
    try:
        with named_for(pipeline):
            pipeline.load_lora_weights(str(source), adapter_name=adapter.name, **kwargs)
    except Exception as error:
        if path is None and (constants.HF_HUB_OFFLINE or "offline" in str(error)):
            raise ConfigError(
                f"parameter 'lora': '{adapter.path}' is not in the hub's cache, or its file is not "
                f"named (weight_name), and there is no network: hf download {adapter.path}"
            ) from None
        raise ConfigError(
            f"parameter 'lora': '{adapter.path}' does not load into {type(pipeline).__name__}: "
            f"{refused_pickle(error) or one_line(error)[:300]}"
        ) from None
    found = list(_layers(pipeline, adapter.name))
    if not any(weight.any() for weight in found):
        why = "its weights are all zero" if found else "it was made for another model"
        raise ConfigError(
            f"parameter 'lora': '{adapter.path}' changes no layer of "
            f"{type(pipeline).__name__}: {why}"
        )
    return len(found)


def _layers(pipeline: Any, name: str) -> Iterator[Any]:
    """Yield the second weight of an adapter in each layer that it changes: zero has no effect."""
    for component in pipeline.components.values():
        for module in component.modules() if hasattr(component, "modules") else ():
            for holder in ("lora_B", "lora_embedding_B"):
                held: Any = getattr(module, holder, ())
                if name in held:
                    yield getattr(held[name], "weight", held[name])
