# SPDX-License-Identifier: Apache-2.0
"""Imports point down the storeys of the house, and no files import each other in a circle.

Every import counts: those inside functions, which only put a circle off, and those for the type
checker, which tie two files together all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("triton_diffusers", "builder", "triton_diffusers/gateway", "benchmarks")
STOREYS = (
    ("contract", "errors", "families"),
    ("config", "engine", "media"),
    ("client", "pipelines", "previews"),
    ("calls", "gateway", "placement", "quantization", "lora", "caching"),
    ("attention", "parallel"),
    ("loading", "running"),
    ("serving",),
)
"""What stands in the root of triton_diffusers, the lowest storey first."""
HEIGHT = {name: height for height, storey in enumerate(STOREYS) for name in storey}
APART = {"loading", "running"}
"""Packages that never import each other."""
MOST_NAMES = 22


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(file): file
    for folder in ("triton_diffusers", "builder", "benchmarks", "scripts")
    for file in (ROOT / folder).rglob("*.py")
}


def imports_of(file: Path) -> Iterator[str]:
    """The project's modules that a file names in an import, wherever it stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else str(node.module) for name in whole)


IMPORTS = {
    module: {name for name in imports_of(file) if name in MODULES} - {module}
    for module, file in MODULES.items()
}


def room(module: str) -> str | None:
    """What of the root of triton_diffusers a module is in; None: in none of it."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] or None if top == "triton_diffusers" else None


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_everything_in_the_root_has_a_storey() -> None:
    assert {r for module in MODULES if (r := room(module))} <= HEIGHT.keys()


@pytest.mark.parametrize("module", sorted(m for m in MODULES if room(m)))
def test_imports_point_down(module: str) -> None:
    own = room(module)
    others = {name: there for name in IMPORTS[module] if (there := room(name)) not in (None, own)}
    up = [name for name, there in others.items() if HEIGHT[str(there)] > HEIGHT[str(own)]]
    assert not up, f"{module} imports from a storey above it"
    assert not [name for name, there in others.items() if {own, there} == APART]


def test_the_library_imports_nothing_that_is_built_on_it() -> None:
    measured = ("benchmarks", "scripts")
    above = {"triton_diffusers": ("builder", *measured), "builder": measured}
    for module, names in IMPORTS.items():
        not_for_it = above.get(module.partition(".")[0], ())
        assert not [name for name in names if name.partition(".")[0] in not_for_it], module


def test_packages_of_one_storey_have_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, names in IMPORTS.items():
        if (own := room(module)) is not None:
            there = {str(r) for name in names if (r := room(name)) not in (None, own)}
            graph.setdefault(own, set()).update(there)
    assert circle_in(graph) == []


@pytest.mark.parametrize("folder", ROOMS)
def test_no_files_import_each_other_in_a_circle(folder: str) -> None:
    prefix = folder.replace("/", ".")
    inside = {m for m in MODULES if m == prefix or m.startswith(f"{prefix}.")}
    assert len(inside) > 10
    assert circle_in({module: IMPORTS[module] & inside for module in inside}) == []


def test_the_root_is_small() -> None:
    names = {f.name for f in (ROOT / "triton_diffusers").iterdir() if f.name != "__pycache__"}
    assert len(names) <= MOST_NAMES, sorted(names)


def test_the_test_sees_what_it_looks_for() -> None:
    """An import inside a function, one for the type checker, and a whole module."""
    assert "triton_diffusers.loading.load" in IMPORTS["triton_diffusers.loading.entry"]
    assert "triton_diffusers.serving.model" in IMPORTS["triton_diffusers.serving"]
    assert "triton_diffusers.families" in IMPORTS["triton_diffusers.pipelines.signature"]
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})
