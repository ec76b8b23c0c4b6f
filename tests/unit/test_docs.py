# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does: generated parts, names, links, command lines."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from builder import main as builder
from builder.entries.config_pbtxt import parse_config, read_parameters
from triton_diffusers import contract
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.config.unsupported import UNSUPPORTED
from triton_diffusers.loading.warmup import DEFAULT, NONE, read_warmup

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
NAMES = [path.name for path in DOCUMENTS]
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    plain = (re.sub(r"[^\w\- ]", "", h.lower()) for h in HEADING.findall(path.read_text()))
    return {h.strip().replace(" ", "-") for h in plain}


def command_lines() -> list[str]:
    """Every `builder` command line in the code blocks of the documents."""
    found = []
    for path in DOCUMENTS:
        for block in FENCE.findall(path.read_text()):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.strip() for line in lines if line.strip().startswith("builder ")]
    return found


def test_generated_parts_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_docs.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


PLAIN = {
    *("model", "pipeline_class", "diffusers_version", "revision", "device", "generator_device"),
    *("diffusers_load_kwargs", "diffusers_call_kwargs", "flow_shift"),
    *("trust_remote_code", "cpu_threads"),
}
"""Options whose value is all that can be wrong with them."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path):
    for link in LINK.findall(path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{path.name}: {link}"


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_are_accepted(line):
    builder.parse(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_entries_of_one_document_have_different_names(path):
    """So that a reader can paste them all: add-model refuses a name that is taken."""
    lines = "\n".join(FENCE.findall(path.read_text())).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True)[1:] for line in lines if "builder add-model" in line]
    names = [args.name or args.model for args in map(builder.parse, words)]
    assert len(names) == len(set(names)), names


def test_the_example_of_a_config_is_read():
    text = (ROOT / "docs" / "load-options.md").read_text()
    (block,) = re.findall(r"^```pbtxt\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    config = ServeConfig.from_parameters(read_parameters(parse_config(block)))
    assert config.quantization_config == {"method": "int8"}
    assert config.enable_cpu_offload is True
    assert config.model.startswith("../")


def test_warm_up_values_are_those_that_are_read():
    text = (ROOT / "docs" / "load-options.md").read_text()
    rows = text.partition("## Warm-up")[2].partition("\n## ")[0].splitlines()
    given = [
        v
        for r in rows
        if r.startswith("| `")
        for v in re.findall(r"`([^`]*)`", r[: r.find("` |") + 1])
    ]
    assert given[0] == DEFAULT
    assert given[-1] == NONE
    for value in given:
        config = ServeConfig(model="m", warmup=json.loads(value) if value[0] == "[" else value)
        calls = read_warmup(config)
        assert calls is not None
        assert (len(calls) == 1) == (value != NONE)


def test_there_are_command_lines_for_the_verified_models():
    lines = "\n".join(command_lines())
    for model in (
        "Qwen/Qwen-Image",
        "Tongyi-MAI/Z-Image-Turbo",
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers",
    ):
        assert f"builder add-model {model}" in lines


def test_every_package_and_module_is_named_in_the_architecture_page():
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = ("benchmarks", "builder", "triton_diffusers")
    files = [f.relative_to(ROOT) for p in packages for f in (ROOT / p).rglob("*.py")]
    assert len(files) > 40
    for file in files:
        name = f"**`{file.parent}/`**" if file.name == "__init__.py" else f"`{file}`"
        assert f"| {name} |" in text


def test_modules_that_the_architecture_page_names_exist():
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Modules")[0]
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text)
    assert len(named) > 15
    places = (ROOT, ROOT / "triton_diffusers")
    assert not [name for name in named if not any((p / name).is_file() for p in places)]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_every_tensor_is_in_its_page():
    text = (ROOT / "docs" / "requests.md").read_text()
    tensors = (*contract.OWN_INPUTS, contract.FPS, contract.PREVIEW_EVERY, *contract.OWN_OUTPUTS)
    tensors += (contract.PROGRESS, contract.PREVIEW)
    names = [t.name for t in tensors] + list(contract.KNOWN_FIELDS)
    assert not [name for name in names if f"\n| `{name}` |" not in text]


def test_every_option_is_in_its_page_and_says_how_it_fails():
    text = (ROOT / "docs" / "load-options.md").read_text()
    for option in options():
        assert f"\n| `{option.name}` |" in text
        can_fail = any(option.metadata[key] for key in ("needs", "fails"))
        assert can_fail or option.name in PLAIN or option.name.startswith("max_"), option.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_scripts_and_files_that_are_named_exist(path):
    named = re.findall(r"`\.?/?((?:scripts|docs|tests)/[\w./-]+)", path.read_text())
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_unsupported_option_is_named_and_every_reason_stands_once():
    text = (ROOT / "docs" / "load-options.md").read_text().partition("## What is not supported")[2]
    assert not [name for name in UNSUPPORTED if f"`{name}`" not in text]
    assert all(text.count(reason) == 1 for reason in UNSUPPORTED.values())


def test_decisions_are_short():
    sections = re.split(r"^### ", (ROOT / "docs" / "decisions.md").read_text(), flags=re.M)[1:]
    assert len(sections) >= 15
    for section in sections:
        lines = [line for line in section.partition("\n## ")[0].splitlines() if line.strip()]
        assert len(lines) <= 10, lines[0]
