# SPDX-License-Identifier: Apache-2.0
"""What is pinned is what is installed; the package and the image hold what they should."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from triton_diffusers.attention.backends import BACKENDS
from triton_diffusers.config.options import options

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile.triton"
EXTRAS = frozenset({"server", "dev", "bench", "families", "quantization"})
"""What ./scripts/test installs. `vision` is for the image: it needs the CUDA build of torch."""
TOOLS = {"pip", "setuptools", "triton-diffusers"}
CUDA = re.compile(r"nvidia-|cuda-|triton$")
"""What torch's CUDA build brings; it pins these itself."""


def pins() -> dict[str, str]:
    """The pinned version of every package, for the running Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            if requirement.marker is None or requirement.marker.evaluate():
                name = canonicalize_name(requirement.name)
                assert name not in found, f"{name} is pinned twice"
                found[name] = specifier.version
    return found


def installed_with_the_project(with_extras: frozenset[str] = EXTRAS) -> dict[str, str]:
    """Name -> version of what is installed because triton-diffusers, with its extras, wants it."""
    found: dict[str, str] = {}
    waiting = [("triton-diffusers", with_extras)]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = metadata.distribution(name)
        found[canonicalize_name(name)] = distribution.version
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (extras or {""})):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def dockerfile() -> str:
    """The Dockerfile's instructions, each on one line."""
    lines = DOCKERFILE.read_text().splitlines()
    return "\n".join(x for x in lines if not x.startswith("#")).replace("\\\n", " ")


def pip_lines() -> list[list[str]]:
    """The arguments of every `pip install` of the Dockerfile, without a TORCH_INDEX_URL."""
    text = re.sub(r"\$\{TORCH_INDEX_URL:\+.*?\"\}", "", dockerfile())
    calls = re.findall(r"python3 -m pip install ([^&\n]+)", text)
    return [[w for w in shlex.split(call) if w != "--no-cache-dir"] for call in calls]


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, **options)


def copy_sources(folder: Path) -> Path:
    """What the Dockerfile copies, as the build would see it."""
    copied = [w for line in re.findall(r"^COPY (.*)$", dockerfile(), re.M) for w in [line.split()]]
    for *sources, target in copied:
        for source in sources:
            place = folder / target if len(sources) > 1 or target.endswith("/") else folder
            place.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, folder / target, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy(ROOT / source, place)
    return folder


def test_the_environment_is_the_pinned_set():
    pinned = pins()
    found = {n: v.partition("+")[0] for n, v in installed_with_the_project().items()}
    found = {n: v for n, v in found.items() if n not in TOOLS}
    assert len(found) > 60
    assert not sorted(set(found) - set(pinned)), "not in constraints.txt"
    assert {n: pinned[n] for n in found} == found


@pytest.mark.parametrize(
    ("package", "extras"), [("client", ()), ("gateway", ("gateway", "postgres"))]
)
def test_clients_and_gateways_need_no_torch(package: str, extras: tuple[str, ...]) -> None:
    """What their code imports comes with their own requirements, of which torch is none."""
    required = installed_with_the_project(frozenset(extras))
    assert not {"torch", "diffusers", "transformers"} & set(required)
    origins = metadata.packages_distributions()
    for path in (ROOT / "triton_diffusers" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in {name.partition(".")[0] for name in named} - sys.stdlib_module_names:
                providers = {canonicalize_name(name) for name in origins[module]}
                assert providers & set(required), f"{path.name}: {module}"


def test_nothing_is_pinned_for_nothing():
    """A pin that no extra leads to is a leftover."""
    only_elsewhere = {"torchvision", "kernels", "kernels-data", "tomlkit"}
    assert not sorted(set(pins()) - set(installed_with_the_project()) - only_elsewhere)


def test_pins_are_within_the_ranges_of_the_package():
    pinned = pins()
    for text in metadata.requires("triton-diffusers") or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name != "triton-diffusers" and name in pinned:
            assert requirement.specifier.contains(pinned[name]), text


def test_numpy_is_the_first_one_where_texts_arrive_whole():
    assert pins()["numpy"].startswith("1.")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = copy_sources(folder / "sources")
    options = ("--no-deps", "--quiet", "--wheel-dir", folder)
    done = run(sys.executable, "-m", "pip", "wheel", *options, sources)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_both_packages_whole_and_nothing_else(wheel):
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    expected = {
        str(path.relative_to(ROOT))
        for package in ("builder", "triton_diffusers")
        for pattern in ("*.py", "py.typed")
        for path in (ROOT / package).rglob(pattern)
    }
    page = (ROOT / "triton_diffusers" / "gateway" / "static").iterdir()
    assert names == expected | {str(path.relative_to(ROOT)) for path in page}


def test_the_wheel_states_license_and_command(wheel):
    with zipfile.ZipFile(wheel) as file:
        text = {Path(n).name: file.read(n).decode() for n in file.namelist() if "dist-info" in n}
    assert "License-Expression: Apache-2.0" in text["METADATA"]
    assert "Apache License" in text["LICENSE"]
    assert "builder = builder.main:main" in text["entry_points.txt"]


def test_the_version_is_in_the_changelog_or_unreleased():
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    version = metadata.version("triton-diffusers")
    assert headings[0] == "Unreleased" or headings[0] == version


def test_every_source_file_states_its_license():
    folders = ("builder", "triton_diffusers", "tests", "scripts", "benchmarks", ".ci")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.is_file()]
    files = [p for p in files if p.suffix in (".py", "") and "__pycache__" not in p.parts]
    assert len(files) > 80
    bare = [p for p in files if "SPDX-License-Identifier: Apache-2.0" not in p.read_text()[:300]]
    assert not [str(p.relative_to(ROOT)) for p in bare]


@pytest.mark.parametrize("name", ["setup", "demo", "test", "check", "../.ci/run"])
def test_scripts_may_be_run(name):
    assert os.access(ROOT / "scripts" / name, os.X_OK)


def test_the_linter_has_nothing_to_say_about_the_dockerfile():
    done = run(Path(sys.executable).parent / "hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_what_the_dockerfile_copies_is_there_and_not_ignored():
    kept = [x[1:] for x in (ROOT / ".dockerignore").read_text().splitlines() if x[:1] == "!"]
    copied = re.findall(r"^COPY (.*)$", dockerfile(), re.M)
    sources = {source for line in copied for source in line.split()[:-1]}
    assert {"builder", "triton_diffusers", "constraints.txt"} <= sources
    assert not [s for s in sources if not (ROOT / s).exists()]
    assert not [s for s in sources if s.split("/")[0] not in kept]
    assert not [name for name in kept if not (ROOT / name).exists()]


def test_the_dockerfile_checks_the_model_and_drops_root():
    text = dockerfile()
    assert re.search(r"HEALTHCHECK .*CMD .*v2/models/\$\{MODEL\}/ready", text)
    user = text.index("\nUSER ")
    assert user > text.rindex("\nRUN ")
    assert "--shm-size" in DOCKERFILE.read_text()


def test_the_dockerfile_installs_the_pinned_set():
    constrained = [line for line in pip_lines() if "--constraint" in line]
    assert [line[-1] for line in constrained] == [
        ".[attention,families,gateway,lora,postgres,quantization,runtime,vision]"
    ]
    assert all(line[line.index("--constraint") + 1] == "constraints.txt" for line in constrained)
    others = [line for line in pip_lines() if line not in constrained]
    assert all("--no-deps" in line or re.search(r"==[\d.]+$", line[-1]) for line in others)


def test_the_image_has_what_options_need():
    """Packages that the docs name for an option, and the compiler that they name."""
    extras = re.search(r"\[(.*)\]", pip_lines()[1][-1])[1].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    parts = [re.search(rf"^{e} = \[(.*?)\]$", project, re.M | re.S)[1] for e in extras]
    there = {Requirement(text).name for part in parts for text in re.findall('"(.*?)"', part)}
    needs = " ".join(option.metadata["needs"] for option in options())
    assert there >= {"peft", "torchao", "kernels", *re.findall(r"the package (\w+)", needs)}
    assert {b.package for b in BACKENDS.values() if b.name.endswith("_hub")} <= there
    assert "C++ compiler and Python's headers" in needs
    assert "g++ python3-dev" in dockerfile()


def test_the_client_needs_no_more_of_tritonclient_than_all_brings():
    """`pip install tritonclient[all]` is what NVIDIA tells clients to do; ours asks for less."""
    texts = [(ROOT / "docs" / "requests.md").read_text(), (ROOT / "README.md").read_text()]
    texts += [path.read_text() for path in (ROOT / "triton_diffusers" / "client").rglob("*.py")]
    used = {
        n
        for text in texts
        for n in re.findall(r"^ *(?:import|from) tritonclient\.(\w+)", text, re.M)
    }
    brought = {extra: set[str]() for extra in ("all", "grpc", "http")}
    for text in metadata.requires("tritonclient") or ():
        requirement = Requirement(text)
        for extra, names in brought.items():
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                names.add(requirement.name)
    assert used == {"grpc", "http", "utils"}
    assert brought["grpc"] | brought["http"] <= brought["all"]
    assert '"tritonclient[grpc,http]>=' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.timeout(1200)
def test_the_client_resolves_beside_all_of_tritonclient(tmp_path):
    """In a clean environment, with the pinned set and without torch."""
    sources = copy_sources(tmp_path / "sources")
    assert run(sys.executable, "-m", "venv", tmp_path / "venv").returncode == 0
    words = ("-m", "pip", "install", "--dry-run", "--constraint", "constraints.txt")
    python = tmp_path / "venv" / "bin" / "python"
    done = run(python, *words, ".", "tritonclient[all]", cwd=sources)
    if done.returncode and "CI" not in os.environ and "connection" in done.stderr.lower():
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    would = re.search(r"Would install (.*)", done.stdout)[1]
    for name in ("tritonclient-", "cuda-python-", "perf-analyzer-", "grpcio-", "geventhttpclient-"):
        assert name in would.replace("_", "-")
    assert "torch-" not in would


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("line", pip_lines(), ids=lambda line: line[-1])
def test_the_pip_lines_of_the_dockerfile_resolve(line, tmp_path):
    """Each in a clean environment: resolved against the index, nothing is installed."""
    sources = copy_sources(tmp_path / "sources")
    assert run(sys.executable, "-m", "venv", tmp_path / "venv").returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--dry-run", *line, cwd=sources)
    if done.returncode and "CI" not in os.environ and "connection" in done.stderr.lower():
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Would install" in done.stdout
    if "--constraint" in line:
        words = re.search(r"Would install (.*)", done.stdout)[1].split()
        would = {canonicalize_name(n): v for n, _, v in (w.rpartition("-") for w in words)}
        free = {n for n in would if n in TOOLS or CUDA.match(n)}
        found = {n: v.partition("+")[0] for n, v in would.items() if n not in free}
        assert found == {n: pins().get(n) for n in found}
