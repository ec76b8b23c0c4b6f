# SPDX-License-Identifier: Apache-2.0
"""`scripts/setup` on a project with nothing to download: real environments, real pip."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "triton-diffusers"
version = "0"
[project.optional-dependencies]
server = []
dev = []
[tool.setuptools]
py-modules = ["empty"]
"""
PYTHON = {**os.environ, "PYTHON": sys.executable}
TIMEOUT_S = 300


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder whose name has a space."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("setup", "setup_venv.py", "probe_python.py"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "constraints.txt").write_text("")
    (root / "empty.py").write_text("")
    return root


def start(root: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([root / "scripts" / "setup", *words], env=env or PYTHON, **pipe)


def setup(root: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    process = start(root, *words, env=env)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output


def stamp(root: Path) -> Path:
    return root / ".venv" / "triton-diffusers-setup.json"


@pytest.mark.timeout(900)
def test_set_up_again_only_when_something_changed(checkout):
    code, output = setup(checkout)
    assert code == 0, output
    assert "making" in output
    assert "installed in" in output
    assert json.loads(stamp(checkout).read_text())["extras"] == ["server"]
    assert setup(checkout) == (0, "")
    # without any Python but its own
    assert setup(checkout, env={"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere"}) == (0, "")

    code, output = setup(checkout, "server,dev")
    assert code == 0, output
    assert "making" not in output
    assert json.loads(stamp(checkout).read_text())["extras"] == ["dev", "server"]
    assert setup(checkout, "server") == (0, "")

    (checkout / "constraints.txt").write_text("pip>=1\n")
    code, output = setup(checkout, "server")
    assert code == 0, output
    assert "[dev,server]" in output


@pytest.mark.timeout(900)
def test_an_install_that_failed_or_broke_off_is_taken_up_again(checkout):
    (checkout / "pyproject.toml").write_text("[project\n")
    code, output = setup(checkout)
    assert code == 1
    assert "  | " in output
    assert "error: pip failed with exit code" in output
    assert not stamp(checkout).exists()
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    code, output = setup(checkout)
    assert code == 0, output
    assert "making" not in output

    (checkout / ".venv" / "bin" / "python").unlink()
    code, output = setup(checkout)
    assert code == 0, output
    assert "making" in output


@pytest.mark.timeout(900)
def test_two_at_a_time_wait_for_each_other(checkout):
    both = [start(checkout), start(checkout)]
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted("making" in output for output in outputs) == [False, True]
    assert sum("waiting for another setup" in output for output in outputs) <= 1


@pytest.mark.timeout(900)
def test_variables_that_lead_pip_elsewhere_are_ignored(checkout, tmp_path):
    elsewhere = {"PIP_USER": "1", "PIP_TARGET": str(tmp_path / "else"), "PYTHONPATH": "/nowhere"}
    code, output = setup(checkout, env=PYTHON | elsewhere)
    assert code == 0, output
    assert not (tmp_path / "else").exists()


def test_no_python_that_fits_is_said(checkout, tmp_path):
    code, output = setup(checkout, env={"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python3"})
    assert code == 1
    assert "PYTHON=/nowhere/python3 is not a program" in output
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 'is Python 3.6; 3.10 to 3.13 is needed' >&2\nexit 1\n")
    old.chmod(0o755)
    code, output = setup(checkout, env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)})
    assert code == 1
    assert f"{old}: is Python 3.6; 3.10 to 3.13 is needed" in output
    assert "apt install" in output
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("versions", "code"), [("3.10-3.13", 0), ("3.8-3.9", 1)])
def test_a_python_is_asked_whether_it_fits(versions, code):
    command = [sys.executable, ROOT / "scripts" / "probe_python.py", versions]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("is needed" in done.stderr) == bool(code)
