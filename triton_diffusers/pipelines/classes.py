# SPDX-License-Identifier: Apache-2.0
"""Which class a model's pipeline has: diffusers' own, or one of the operator's or the model's."""

import functools
import importlib
import inspect
import logging
import os
import sys
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.pipelines.model_files import find_path, is_single_file
from triton_diffusers.pipelines.packages import dummy_backends, install

PARALLEL = "HF_ENABLE_PARALLEL_LOADING"


def import_diffusers() -> Any:
    """Import diffusers without the notices that its optional dependencies print."""
    ask_for_parallel_loading()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("torchao", "torch.utils._pytree", "diffusers.quantizers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers
    return diffusers


def is_named_by_model(config: ServeConfig) -> bool:
    """Tell whether model_index.json has a say in the class of an entry's pipeline."""
    return config.custom_pipeline is None and (
        config.pipeline_class is None or config.trust_remote_code
    )


def find_pipeline_class(
    config: ServeConfig, entry: Path, model: Path | str, index: Mapping[str, Any] | None
) -> type:
    """Return the pipeline class that an entry names, or that its model names.

    model: what `find_model` found. index: model_index.json, where `is_named_by_model`.
    Raises ConfigError for a class that diffusers lacks, and for code that was not allowed to run.
    """
    if config.custom_pipeline is not None:
        return _custom_class(config, entry)
    if config.pipeline_class is not None and not config.trust_remote_code:
        return pipeline_class_named(config.pipeline_class)
    if is_single_file(model):
        if config.pipeline_class is None:
            raise ConfigError(
                f"model '{config.model}' is a single file, which does not name its pipeline: set "
                "pipeline_class, such as StableDiffusionXLPipeline"
            )
        return pipeline_class_named(config.pipeline_class)
    named = (index or {})["_class_name"]
    if isinstance(named, list) and len(named) == 2 and config.pipeline_class in (None, named[1]):
        return _own_class(config, model, named[0], named[1])
    name = config.pipeline_class or (named[-1] if isinstance(named, list) else named)
    return pipeline_class_named(name)


def pipeline_class_named(name: str) -> type:
    """Return a pipeline class of the installed diffusers. Raises ConfigError with the near miss."""
    diffusers = import_diffusers()
    try:
        cls = getattr(diffusers, name, None)
    except (ImportError, RuntimeError) as error:  # diffusers imports classes when asked for them
        raise ConfigError(
            f"pipeline class '{name}' cannot be imported: {one_line(error)}"
        ) from None
    if missing := dummy_backends(cls):
        raise ConfigError(
            f"pipeline class '{name}' needs what is not installed: {', '.join(missing)}; "
            + install(*missing)
        )
    if isinstance(cls, type) and issubclass(cls, diffusers.DiffusionPipeline):
        return _callable(cls)
    if cls is not None:
        raise ConfigError(
            f"'{name}' of diffusers is no pipeline class; name one such as FluxPipeline with "
            "pipeline_class"
        )
    known = [n for n in dir(diffusers) if n.endswith("Pipeline")]
    close = unknown("pipeline class", name, f"diffusers {diffusers.__version__}", known)
    raise ConfigError(close.split(" Accepted:")[0] + " Name one with pipeline_class.")


def _callable(cls: type) -> type:
    if "__call__" not in {n for base in cls.__mro__[:-1] for n in vars(base)}:
        raise ConfigError(
            f"pipeline class '{cls.__name__}' cannot be called; name the model's own class with "
            "pipeline_class"
        )
    return cls


def _custom_class(config: ServeConfig, entry: Path) -> type:
    """Return the class of `custom_pipeline`: a local file or folder, or code from elsewhere."""
    given = str(config.custom_pipeline)
    path = find_path("custom_pipeline", given, entry)
    if path is None:
        if given.endswith(".py") or Path(given).is_absolute() or given.startswith((".", "~")):
            raise ConfigError(
                f"custom_pipeline '{given}': no such file; give a .py file, or a folder that has a "
                "pipeline.py"
            )
        _refuse_untrusted(config, f"custom_pipeline '{given}' is code from the internet")
        return _dynamic_class(given, "pipeline.py", config.pipeline_class, config)
    folder, file = (path.parent, path.name) if path.is_file() else (path, "pipeline.py")
    if not file.endswith(".py") or not (folder / file).is_file():
        raise ConfigError(
            f"custom_pipeline '{given}': give a .py file, or a folder that has a pipeline.py"
        )
    return _dynamic_class(str(folder), file, config.pipeline_class, config)


def _own_class(config: ServeConfig, model: Path | str, module: str, name: str) -> type:
    """Return the class that a model's own code defines, or diffusers' where it has none."""
    if isinstance(model, Path) and not (model / f"{module}.py").is_file():
        return pipeline_class_named(name)
    _refuse_untrusted(config, f"model '{config.model}' brings its own code ({module}.py)")
    return _dynamic_class(str(model), f"{module}.py", name, config)


def _refuse_untrusted(config: ServeConfig, what: str) -> None:
    if not config.trust_remote_code:
        raise ConfigError(
            f"{what}, which runs with the server's rights: read it, then set trust_remote_code to "
            "true"
        )


def _dynamic_class(source: str, file: str, name: str | None, config: ServeConfig) -> type:
    """Import a pipeline class from a folder, from a hub id or from diffusers' community mirror."""
    where = f"pipeline code '{source}/{file}'"
    try:
        if Path(source).is_dir():
            found = _classes_of_file(Path(source) / file)
        else:
            from diffusers.utils.dynamic_modules_utils import get_class_from_dynamic_module

            fetch = functools.partial(get_class_from_dynamic_module, trust_remote_code=True)
            cls = fetch(source, module_file=file, class_name=name, revision=None)
            found = {cls.__name__: cls}
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be imported: {one_line(error)}") from None
    if name is not None and name not in found:
        raise ConfigError(unknown("pipeline class", name, where, found))
    if name is None and len(found) != 1:
        raise ConfigError(
            f"{where} defines {len(found)} classes that extend DiffusionPipeline "
            f"({', '.join(found) or 'none'}), not one; where there are several, set pipeline_class"
        )
    return _callable(found[name] if name else next(iter(found.values())))


def _classes_of_file(path: Path) -> dict[str, type]:
    """Import a .py file, whose relative imports find its folder; return its pipeline classes.

    Not through diffusers' cache of modules: entries that load at once would overwrite there what
    has the same file name.
    """
    diffusers = import_diffusers()
    package = f"triton_diffusers_code_{abs(hash(str(path.parent)))}"
    if package not in sys.modules:
        folder = types.ModuleType(package)
        folder.__path__ = [str(path.parent)]
        sys.modules[package] = folder
    module = importlib.import_module(f"{package}.{path.stem}")
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, diffusers.DiffusionPipeline)
        if value.__module__ == module.__name__
    }


def constructor_components(cls: type) -> dict[str, str]:
    """Return component name -> class, as the pipeline's constructor declares them."""
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except (NameError, TypeError):
        hints = {}
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return {
        p.name: _class_name(hints[p.name])
        for p in named
        if p.name in hints and not _is_setting(hints[p.name])
    }


def _is_setting(hint: Any) -> bool:
    """Tell whether a parameter of the constructor is a number or text, not a component."""
    kinds = set(typing.get_args(hint) or (hint,)) - {type(None)}
    return kinds <= {bool, int, float, str}


def _class_name(hint: Any) -> str:
    parts = [a for a in typing.get_args(hint) if a is not type(None)]
    return " or ".join(_class_name(a) for a in parts) if parts else getattr(hint, "__name__", "?")


def ask_for_parallel_loading() -> None:
    """Have diffusers load the shards of a model in parallel; only before diffusers is imported.

    transformers does so by itself. The operator's own setting wins.
    """
    os.environ.setdefault(PARALLEL, "1")
