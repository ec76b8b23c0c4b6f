# SPDX-License-Identifier: Apache-2.0
"""Writing and removing entries: whole or not at all, and nothing outside the repository."""

import os
from pathlib import Path

import pytest

from builder import main as builder
from builder.entries import repository
from builder.entries.config_pbtxt import MODEL_PY
from triton_diffusers.errors import ConfigError

CONFIG = 'name: "a"\nbackend: "python"\n'


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("name", ["a", "qwen-image", "Wan2.2_T2V", "7"])
def test_good_names(name):
    assert repository.check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "-a", ".a", "a b", "é", "a\n", "x" * 129]
)
def test_bad_names_are_refused(name):
    with pytest.raises(ConfigError, match="--name"):
        repository.check_name(name)


def test_a_new_entry_has_two_files_and_nothing_else(tmp_path):
    folder = repository.write_entry(tmp_path / "new" / "repo", "a", CONFIG)
    assert tree(tmp_path / "new" / "repo") == ["a", "a/1", "a/1/model.py", "a/config.pbtxt"]
    assert (folder / "config.pbtxt").read_text() == CONFIG
    assert (folder / "1" / "model.py").read_text() == MODEL_PY
    assert folder.stat().st_mode & 0o777 == 0o777 & ~_umask()


def test_an_existing_entry_is_kept_unless_forced(tmp_path):
    repository.write_entry(tmp_path, "a", CONFIG)
    with pytest.raises(ConfigError, match="--force"):
        repository.check_free(tmp_path, "a", force=False)
    repository.check_free(tmp_path, "a", force=True)


def test_force_keeps_other_files(tmp_path):
    weights = tmp_path / "a" / "pipeline" / "unet"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_text("w")
    repository.check_free(tmp_path, "a", force=False)  # weights alone are no entry
    repository.write_entry(tmp_path, "a", "old")
    repository.write_entry(tmp_path, "a", CONFIG)
    assert (weights / "model.safetensors").read_text() == "w"
    assert (tmp_path / "a" / "config.pbtxt").read_text() == CONFIG
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_everything_as_it_was(tmp_path, existing):
    if existing:
        repository.write_entry(tmp_path, "a", "old")
    before = tree(tmp_path)
    with pytest.raises(UnicodeEncodeError):
        repository.write_entry(tmp_path, "a", "\udcff")
    assert tree(tmp_path) == before
    if existing:
        assert (tmp_path / "a" / "config.pbtxt").read_text() == "old"


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        repository.write_entry(tmp_path / "file", "a", CONFIG)
    with pytest.raises(ConfigError, match="in the way"):
        repository.check_free(tmp_path, "file", force=True)


def test_links_are_not_written_through(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="link"):
        repository.check_free(tmp_path / "repo", "a", force=True)


def test_remove(tmp_path, capsys):
    repository.write_entry(tmp_path, "a", CONFIG)
    assert builder.main(["remove", "a", "--repository", str(tmp_path)]) == 0
    assert tree(tmp_path) == []
    assert builder.main(["remove", "a", "--repository", str(tmp_path)]) == 1
    assert "not known" in capsys.readouterr().err


def test_remove_keeps_weights_unless_forced(tmp_path, capsys):
    folder = repository.write_entry(tmp_path, "a", CONFIG)
    (folder / "pipeline").mkdir()
    assert builder.main(["remove", "a", "--repository", str(tmp_path)]) == 1
    assert "also holds pipeline: pass --force" in capsys.readouterr().err
    assert (folder / "config.pbtxt").exists()
    assert builder.main(["remove", "a", "--force", "--repository", str(tmp_path)]) == 0
    assert tree(tmp_path) == []


def test_remove_follows_no_links(tmp_path):
    outside = repository.write_entry(tmp_path / "outside", "a", CONFIG)
    (outside / "pipeline").mkdir()
    repo = tmp_path / "repo"
    inside = repository.write_entry(repo, "b", CONFIG)
    (repo / "a").symlink_to(outside)
    (inside / "pipeline").symlink_to(outside / "pipeline")
    repository.remove_entry(repo, "a", force=False)
    repository.remove_entry(repo, "b", force=True)
    assert tree(repo) == []
    assert (outside / "pipeline").is_dir()
    assert (outside / "config.pbtxt").exists()


@pytest.mark.parametrize("name", ["../outside", ".", "..", "/tmp"])
def test_remove_stays_inside_the_repository(tmp_path, name):
    repository.write_entry(tmp_path / "repo", "a", CONFIG)
    repository.write_entry(tmp_path, "outside", CONFIG)
    with pytest.raises(ConfigError):
        repository.remove_entry(tmp_path / "repo", name, force=True)
    assert (tmp_path / "outside" / "config.pbtxt").exists()


def test_list_names_entries_and_broken_ones(tmp_path, capsys):
    repository.write_entry(tmp_path, "b", "nonsense")
    text = CONFIG + 'parameters { key: "model" value { string_value: "owner/model" } }\n'
    repository.write_entry(tmp_path, "a", text)
    (tmp_path / "notes.txt").write_text("")
    assert builder.main(["list", "--repository", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "a  owner/model"
    assert second.startswith("b  unreadable: ")


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
