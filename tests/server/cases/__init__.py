# SPDX-License-Identifier: Apache-2.0
"""Requests that must be refused, by theme: every `CASES` of this package's modules."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.server.cases.case import Case

__all__ = ["CASES", "Case"]


def _collect() -> tuple[Case, ...]:
    modules = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    found = [case for module in modules for case in getattr(module, "CASES", ())]
    names = [case.name for case in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two cases are called {sorted(twice)}")
    return tuple(found)


CASES = _collect()
