# SPDX-License-Identifier: Apache-2.0
"""Type annotations in all their spellings -> which plain types they allow, and how nested."""

import builtins
import collections.abc
import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SCALARS = frozenset({"bool", "int", "float", "str"})
TENSORS = frozenset(
    {"Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor", "HalfTensor", "ndarray"}
)
IMAGES = frozenset({"Image", "PipelineImageInput"})
LISTS = (list, tuple, set, collections.abc.Iterable, collections.abc.Sequence)
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True)
class Shape:
    """What an annotation allows."""

    leaves: frozenset[tuple[str, int]]
    """(type name, depth): `list[float]` is ("float", 1)."""
    choices: tuple[str, ...] = ()
    enum: type | None = None
    is_tuple: bool = False
    key_type: type | None = None
    """int or float, where the keys of a mapping are numbers."""

    @property
    def names(self) -> frozenset[str]:
        """The type names at any depth."""
        return frozenset(name for name, _ in self.leaves)

    @property
    def scalars(self) -> frozenset[str]:
        """Which of bool, int, float and str are allowed."""
        return self.names & SCALARS

    @property
    def has_list(self) -> bool:
        """Whether several scalars are allowed."""
        return any(depth == 1 for name, depth in self.leaves if name in SCALARS)

    @property
    def only_list(self) -> bool:
        """Whether a lone value is not allowed."""
        return bool(self.leaves) and all(depth >= 1 for _, depth in self.leaves)

    @property
    def nested(self) -> bool:
        """Whether scalars can only come in lists of lists."""
        depths = [depth for name, depth in self.leaves if name in SCALARS]
        return bool(depths) and min(depths) >= 2

    @property
    def has_image(self) -> bool:
        """Whether pictures are allowed."""
        return bool(self.names & IMAGES)

    @property
    def has_tensor(self) -> bool:
        """Whether torch or numpy arrays are allowed."""
        return bool(self.names & TENSORS)

    @property
    def has_dict(self) -> bool:
        """Whether mappings are allowed."""
        return "dict" in self.names

    @property
    def nested_type(self) -> type | None:
        """dict or list, where nothing else is allowed."""
        if self.leaves == {("dict", 0)}:
            return dict
        return list if self.only_list else None

    @property
    def has_any(self) -> bool:
        """Whether anything is allowed."""
        return "Any" in self.names

    @property
    def has_object(self) -> bool:
        """Whether objects of some class of diffusers are allowed, which JSON cannot carry."""
        return bool(self.names - SCALARS - TENSORS - IMAGES - {"dict", "Any", "list"})

    @property
    def is_empty(self) -> bool:
        """Whether the annotation says nothing."""
        return not self.leaves


def read(annotation: Any, scope: Mapping[str, Any]) -> Shape:
    """Read an annotation; text that cannot be evaluated in `scope` is read word by word."""
    if annotation is inspect.Parameter.empty:
        return Shape(frozenset())
    annotation = _evaluate(annotation, scope)
    found = list(_leaves(annotation, 0, scope))
    leaves = frozenset((_name(leaf), depth) for leaf, depth in found)
    literals = [c for leaf, _ in found if _is_literal(leaf) for c in typing.get_args(leaf)]
    enums = [leaf for leaf, _ in found if isinstance(leaf, type) and issubclass(leaf, enum.Enum)]
    choices = [*map(str, literals), *(str(m.value) for e in enums for m in e)]
    return Shape(
        leaves,
        tuple(choices),
        enums[0] if enums else None,
        _is_tuple(annotation),
        next(_key_types(annotation, scope), None),
    )


def _evaluate(annotation: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(scope), dict(vars(typing)))
    except Exception:  # names imported for type checkers only, or syntax of a newer Python
        return annotation


def _leaves(annotation: Any, depth: int, scope: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    annotation = _evaluate(annotation, scope)
    origin = typing.get_origin(annotation)
    if annotation is None or annotation is types.NoneType or annotation is Ellipsis:
        return
    if isinstance(annotation, str):
        yield from _words(annotation)
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _leaves(part, depth, scope)
    elif origin in LISTS:
        for part in typing.get_args(annotation):
            yield from _leaves(part, depth + 1, scope)
    elif annotation in LISTS:
        yield "list", depth
    elif origin in (dict, collections.abc.Mapping):
        yield dict, depth
    elif origin is typing.Annotated:
        yield from _leaves(typing.get_args(annotation)[0], depth, scope)
    else:
        yield annotation, depth


def _key_types(annotation: Any, scope: Mapping[str, Any]) -> Iterator[type]:
    """Yield the type of the keys of each mapping whose keys are numbers."""
    annotation = _evaluate(annotation, scope)
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (dict, collections.abc.Mapping):
        yield from (number for number in (int, float) if parts and parts[0] is number)
    else:
        for part in parts:
            yield from _key_types(part, scope)


def _words(text: str) -> Iterator[tuple[str, int]]:
    """Read the type names of an annotation that could not be evaluated, with their list depth."""
    depth = 0
    for match in re.finditer(r"[\[\]]|[A-Za-z_][\w.]*", text):
        token = match.group()
        if token in "[]":
            depth += 1 if token == "[" else -1
            continue
        word = token.rsplit(".", 1)[-1]
        if word not in ("None", "Optional", "Union", "List", "list", "Tuple", "tuple", "Callable"):
            opened = re.findall(r"(\w+)\[", text[: match.start()])[:]
            lists = (
                sum(1 for w in opened[-depth:] if w.lower() in ("list", "tuple")) if depth else 0
            )
            yield word, lists


def _name(leaf: Any) -> str:
    if isinstance(leaf, str):
        return leaf
    if _is_literal(leaf):
        return type(typing.get_args(leaf)[0]).__name__
    if isinstance(leaf, type) and issubclass(leaf, enum.Enum):
        return builtins.str.__name__
    if leaf is typing.Any:
        return "Any"
    if leaf is collections.abc.Mapping:
        return "dict"
    return getattr(leaf, "__name__", str(leaf))


def _is_literal(leaf: Any) -> bool:
    return typing.get_origin(leaf) is typing.Literal


def _is_tuple(annotation: Any) -> bool:
    """Tell whether a tuple is the only kind of sequence that an annotation allows."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [p for p in typing.get_args(annotation) if p is not types.NoneType]
        sequences = [p for p in parts if typing.get_origin(p) in LISTS]
        return bool(sequences) and all(typing.get_origin(p) is tuple for p in sequences)
    return origin is tuple or annotation is tuple
