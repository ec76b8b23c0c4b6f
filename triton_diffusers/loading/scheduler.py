# SPDX-License-Identifier: Apache-2.0
"""`scheduler`: replace a pipeline's scheduler by class name, with changes to its config."""

import inspect
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.loading.plan import Loading, LoadPlan
from triton_diffusers.pipelines.classes import import_diffusers

KEY = "class"


def check_scheduler(config: ServeConfig) -> None:
    """Raise ConfigError for a class or a config name that diffusers does not know."""
    name, changes = _parts(config)
    if name is not None:
        _check_changes(_scheduler_class(name), changes)


def replace_scheduler(pipeline: Any, plan: LoadPlan, loading: Loading) -> dict[str, Any]:
    """Put the scheduler of an entry in place of the pipeline's own; return its class."""
    config = plan.config
    if config.scheduler is None:
        return {}
    old = getattr(pipeline, "scheduler", None)
    if old is None:
        raise ConfigError(
            f"parameter 'scheduler' has no effect on {type(pipeline).__name__}: it has none; "
            "remove it"
        )
    name, changes = _parts(config)
    cls = type(old) if name is None else _scheduler_class(name)
    _check_changes(cls, changes)
    try:
        pipeline.scheduler = cls.from_config(old.config, **changes)
    except Exception as error:
        raise ConfigError(
            f"parameter 'scheduler': {cls.__name__} does not take this config: {one_line(error)}"
        ) from None
    if cls not in {type(old), *getattr(old, "compatibles", ())}:
        loading.warnings.append(
            f"scheduler: diffusers does not list {cls.__name__} as compatible with the model's "
            f"{type(old).__name__}; look at a picture before you serve it"
        )
    return {"scheduler": type(pipeline.scheduler).__name__}


def _parts(config: ServeConfig) -> tuple[str | None, dict[str, Any]]:
    """Return the class name, or None for the model's own class, and the changes to its config."""
    given = config.scheduler
    if not isinstance(given, dict):
        return given, {}
    name = given.get(KEY)
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"parameter 'scheduler': '{KEY}' must be the name of a class")
    if not given:
        raise ConfigError(
            f"parameter 'scheduler' is empty: write {{\"{KEY}\": NAME, further config}}"
        )
    return name, {key: value for key, value in given.items() if key != KEY}


def _scheduler_class(name: str) -> Any:
    diffusers = import_diffusers()
    cls = getattr(diffusers, name, None)
    mixin = diffusers.SchedulerMixin
    if isinstance(cls, type) and issubclass(cls, mixin) and cls is not mixin:
        return cls
    known = [n for n in dir(diffusers) if n.endswith("Scheduler")]
    raise ConfigError("parameter 'scheduler': " + unknown("class", name, "diffusers", known))


def _check_changes(cls: Any, changes: dict[str, Any]) -> None:
    accepted = [n for n in inspect.signature(cls.__init__).parameters if n != "self"]
    for name in changes:
        if name not in accepted:
            raise ConfigError(
                "parameter 'scheduler': " + unknown("config", name, cls.__name__, accepted)
            )
