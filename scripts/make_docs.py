# SPDX-License-Identifier: Apache-2.0
"""Write the generated parts of README.md and docs/ from the code; `--check` only compares.

A part stands between `<!-- generated: NAME (scripts/make_docs.py) -->` and `<!-- end -->`.
"""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builder.main import make_parser
from scripts import docs_gateway
from triton_diffusers import contract
from triton_diffusers.attention.backends import BACKENDS, CHAINS
from triton_diffusers.config.options import options
from triton_diffusers.config.text import option_types
from triton_diffusers.config.unsupported import RENAMED, UNSUPPORTED
from triton_diffusers.contract import WIRE, Kind, Tensor
from triton_diffusers.placement.placement import PLACEMENTS
from triton_diffusers.quantization.methods import METHODS
from triton_diffusers.serving.metrics import FAMILIES, PREFIX

PACKAGES = ("benchmarks", "builder", "triton_diffusers")
PART = re.compile(
    r"(<!-- generated: (?P<name>\S+) \(scripts/make_docs\.py\) -->\n).*?(<!-- end -->)", re.DOTALL
)
TYPE_WORDS = {
    dict: "JSON object",
    list: "JSON list",
    str: "text",
    int: "integer",
    float: "number",
    bool: "true/false",
}

FILES_ABOUT = (
    "the same as files: PNG, JPEG ..., MP4, GIF, WAV, FLAC; raw bytes, base64 or data: URL"
)
KIND_ABOUT = {
    Kind.TEXT: "one element is passed as plain text, several as a list",
    Kind.IMAGE: "(N, height, width, channels); one is passed as an image, several as a list",
    Kind.VIDEO: "(frames, height, width, channels); one video",
    Kind.AUDIO: "(channels, samples)",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    args = parser.parse_args()
    old = [path for path in documents() if path.read_text() != render(path.read_text())]
    for path in old:
        if args.check:
            print(f"{path.relative_to(ROOT)} is out of date: run scripts/make_docs.py")
        else:
            path.write_text(render(path.read_text()))
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if old and args.check else 0


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def render(text: str) -> str:
    """Return a document with every generated part made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}\n\n{part[3]}", text)


def parameters() -> str:
    """Return the load-time options of an entry."""
    rows = []
    for option in options():
        about, needs, fails = (option.metadata[key] for key in ("about", "needs", "fails"))
        default = _default(option.default)
        rows.append((f"`{option.name}`", _values(option), default, about, needs, fails))
    return _table(("parameter", "value", "default", "what it does", "needs", "how it fails"), rows)


def _values(option: Any) -> str:
    first, *others = option_types(option)
    words = " ".join(f"`{c}`" for c in option.metadata["choices"]) or TYPE_WORDS[first]
    return " or ".join([words, *(TYPE_WORDS[kind] for kind in others)])


def unsupported() -> str:
    """Return the options of other servers that are refused, those with one reason in one row."""
    rows = [
        (", ".join(f"`{n}`" for n, other in UNSUPPORTED.items() if other == why), why)
        for why in dict.fromkeys(UNSUPPORTED.values())
    ]
    return _table(("name", "why"), rows)


def renamed() -> str:
    """Return the options of other servers that have another name here."""
    return _table(("there", "here"), [(f"`{n}`", f"`{ours}`") for n, ours in RENAMED.items()])


def quantization_methods() -> str:
    """Return the methods of the short form."""
    rows = [(f"`{m.name}`", f"`{m.config_class}`", m.about, m.needs) for m in METHODS.values()]
    return _table(("method", "torchao", "what it does", "needs"), rows)


def attention_backends() -> str:
    """Return the attention backends, and the names that stand for several."""
    backends = [
        (f"`{b.name}`", b.about, ", ".join(b.platforms), f"`{b.package}`" if b.package else "")
        for b in BACKENDS.values()
    ]
    chains = [
        (f"`{name}`", platform or _rest(chain), ", ".join(f"`{b}`" for b in tried))
        for name, chain in CHAINS.items()
        for platform, tried in chain.items()
    ]
    return (
        _table(("backend", "what it is", "runs on", "needs"), backends)
        + "\n\n"
        + _table(("name", "on", "tries in this order"), chains)
    )


def _rest(chain: Mapping[str, Any]) -> str:
    return "any other" if len(chain) > 1 else "all"


def placements() -> str:
    """Return the ways to place a pipeline, and what each cannot be combined with."""
    rows = []
    for row in PLACEMENTS:
        others = [f"`{p.option}` (another placement)" for p in PLACEMENTS if p is not row]
        reasons = [f"`{option}` ({reason})" for option, reason in row.not_with]
        rows.append((f"`{row.option}`", row.about, "; ".join([*reasons, *others])))
    return _table(("option", "weights are on the GPU", "refused together with"), rows)


def kinds() -> str:
    """Return how each kind of parameter of `__call__` looks on the wire."""
    rows = []
    for kind, (data_type, dims) in WIRE.items():
        rows.append((kind.value, "`X`", f"`{data_type}`", _dims(dims), KIND_ABOUT.get(kind, "")))
        if kind in contract.MEDIA:
            bytes_name = f"`X{contract.BYTES_SUFFIX}`"
            rows.append((kind.value, bytes_name, "`TYPE_STRING`", _dims((-1,)), FILES_ABOUT))
    rows.append((Kind.JSON.value, "in `extra`", "", "", "dictionaries and nested lists"))
    rows.append((Kind.TENSOR.value, "none", "", "", "latents and embeddings do not travel"))
    return _table(("parameter `X` is", "input", "data type", "dims", "note"), rows)


def own_inputs() -> str:
    """Return the inputs that every entry has besides those of its pipeline."""
    return _tensors((*contract.OWN_INPUTS, contract.FPS, contract.PREVIEW_EVERY))


def outputs() -> str:
    """Return the outputs; which of them an entry has, its config.pbtxt says."""
    own = (*contract.OWN_OUTPUTS, contract.PROGRESS, contract.PREVIEW)
    return _tensors((*contract.KNOWN_FIELDS.values(), *own))


def metrics() -> str:
    """Return the metrics of the runtime, without the labels that each of them has."""
    rows = [
        (f"`{PREFIX}{f.name}`", f.kind, f"`{f.label}`" if f.label else "", f.about)
        for f in FAMILIES
    ]
    return _table(("metric", "kind", "label", "what it is"), rows)


def commands() -> str:
    """Return the subcommands of builder."""
    _, parsers = make_parser()
    rows = [
        (f"`builder {name}`", parser.description, f"`{_example(parser)}`")
        for name, parser in parsers.items()
    ]
    return _table(("command", "what it does", "example"), rows)


def modules() -> str:
    """Return one line for each package and module: the first of its docstring."""
    rows = []
    for path in module_files():
        tree = ast.parse(path.read_text())
        first = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
        is_package = path.name == "__init__.py"
        name = path.relative_to(ROOT)
        rows.append((f"**`{name.parent}/`**" if is_package else f"`{name}`", first))
    return _table(("package, module", "its one job"), rows)


def module_files() -> list[Path]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(files, key=lambda path: (path.parent, path.name != "__init__.py", path.name))


def _tensors(tensors: Iterable[Tensor]) -> str:
    rows = [(f"`{t.name}`", f"`{t.data_type}`", _dims(t.dims), t.about) for t in tensors]
    return _table(("name", "data type", "dims", "what it is"), rows)


def _dims(dims: tuple[int, ...]) -> str:
    return f"`[{', '.join(map(str, dims))}]`"


def _default(value: Any) -> str:
    if value in (None, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _example(parser: argparse.ArgumentParser) -> str:
    return (parser.epilog or "").partition("\n")[2].strip().partition("\n")[0]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _table_of(part: Callable[[], Iterable[tuple[str, ...]]]) -> str:
    """Return the table of a part whose first row is its head."""
    head, *rows = part()
    return _table(head, rows)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        *(parameters, quantization_methods, attention_backends, placements, unsupported, renamed),
        *(kinds, own_inputs, outputs, metrics, commands, modules),
    )
} | {part.__name__: partial(_table_of, part) for part in docs_gateway.PARTS}


if __name__ == "__main__":
    sys.exit(main())
