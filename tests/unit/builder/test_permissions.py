# SPDX-License-Identifier: Apache-2.0
"""Folders that may not be read or written: one line that names them, and the rest goes on."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import main as builder
from builder.commands.generate import check_output
from builder.entries import repository
from triton_diffusers.errors import ConfigError

CONFIG = 'name: "a"\nbackend: "python"\n'
NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """An empty folder of a user without root's right to read everything."""
    folder = Path(tempfile.mkdtemp())  # pytest's own may be entered by its user only
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield folder
    finally:
        if root:
            os.setresuid(0, 0, 0)
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o755)
        shutil.rmtree(folder)


def run(folder: Path, command: str, *words: str) -> int:
    return builder.main([command, *words, "--repository", str(folder)])


def test_list_and_check_go_on_after_an_unreadable_entry(unprivileged, capsys):
    for name in ("a", "b"):
        repository.write_entry(unprivileged, name, CONFIG)
    (unprivileged / "a").chmod(0)
    (unprivileged / ".hidden").mkdir(0)
    assert run(unprivileged, "list") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert (
        first == f"a  unreadable: {unprivileged}/a/config.pbtxt cannot be read: Permission denied"
    )
    assert second == "b  (no model parameter)"
    assert run(unprivileged, "check") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("FAIL  a: ")
    assert "cannot be read: Permission denied" in first
    assert second.startswith("FAIL  b: ")


@pytest.mark.parametrize("words", [["list"], ["serve"], ["serve", "a"], ["remove", "a"]])
def test_an_unreadable_repository_is_named(unprivileged, capsys, words):
    repository.write_entry(unprivileged, "a", CONFIG)
    unprivileged.chmod(0)
    assert run(unprivileged, *words) == 1
    message = f"error: model repository '{unprivileged}' cannot be read: Permission denied\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(("locked", "mode"), [(".", 0o555), ("a", 0o555), ("a", 0)])
def test_what_cannot_be_removed_stays(unprivileged, capsys, locked, mode):
    repository.write_entry(unprivileged, "a", CONFIG)
    (unprivileged / locked).chmod(mode)
    assert run(unprivileged, "remove", "a") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot remove '{unprivileged}/a': ")
    assert error.endswith("Permission denied\n")
    (unprivileged / locked).chmod(0o755)
    assert [p.name for p in unprivileged.iterdir()] == ["a"]
    assert (unprivileged / "a" / "1" / "model.py").is_file()


def test_an_output_without_permission_is_refused_first(unprivileged):
    (unprivileged / "old.png").write_text("")
    (unprivileged / "old.png").chmod(0o444)
    with pytest.raises(ConfigError, match=r"old\.png' cannot be written to"):
        check_output(unprivileged / "old.png")
    unprivileged.chmod(0o555)
    with pytest.raises(ConfigError, match=f"'{unprivileged}' cannot be written to"):
        check_output(unprivileged / "new.png")
