# SPDX-License-Identifier: Apache-2.0
"""No file of a model runs code: not model_index.json, not a .py beside it, not a pickle.

Each attack is made on a real tiny pipeline and goes through everything that reads a model: an
entry's load, `check`, `inspect` and `add-model`. Its code would leave a mark.
"""

from __future__ import annotations

import json
import pickle
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format

from builder import main as builder
from builder.entries.config_pbtxt import parse_config
from tests import tiny
from tests.pipeline.code_in_models import ATTACKS, ENCODER, UNET, Attack, Place, weights_as_bin
from tests.server.entries import add_entry
from tests.server.spoiled import load_arguments
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.entry import load_entry


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model that every attack starts from, and its entry."""
    folder = tmp_path_factory.mktemp("no-code")
    model = tiny.save("stable-diffusion", folder).rename(folder / "model")
    add_entry(folder, "entry", model)
    return folder


def write_attack(original: Path, folder: Path, attack: Attack) -> tuple[Path, Place, list[str]]:
    """Return the attack's entry, its place, and the words of add-model for it."""
    place = Place(folder / "model", folder / "mark")
    shutil.copytree(original / "model", place.model)
    attack.make(place)
    given = {"model": "{model}"} | attack.parameters
    given = {name: text.format(model=place.model) for name, text in given.items()}
    entry = folder / "repository" / attack.name
    shutil.copytree(original / "entry", entry)
    message = parse_config((entry / "config.pbtxt").read_text())
    message.name = attack.name
    for name, text in given.items():
        message.parameters[name].string_value = text
    (entry / "config.pbtxt").write_text(text_format.MessageToString(message))
    words = [given.pop("model"), "--name", "again", "--repository", str(entry.parent)]
    for name, text in given.items():
        flag = name.replace("_", "-")
        words += [f"--no-{flag}"] if text == "false" else [f"--{flag}", text]
    return entry, place, words


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_code_of_a_model_does_not_run(
    original: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    attack: Attack,
) -> None:
    entry, place, words = write_attack(original, tmp_path, attack)
    monkeypatch.chdir(place.model)
    monkeypatch.syspath_prepend(str(place.model))
    monkeypatch.setattr("builtins.input", lambda *asked: "y")  # a terminal that says yes to all
    if attack.words:
        with pytest.raises(ConfigError) as refused:
            load_entry(load_arguments(entry))
        text = str(refused.value)
        assert all(word in text for word in attack.words), text
        assert text.isprintable()
        assert "weights_only" not in text
        assert "damaged" not in text or "is a pickle" not in text
    else:
        pipeline = load_entry(load_arguments(entry)).pipeline
        assert type(pipeline).__module__.startswith("diffusers.")
        for name, (library, cls) in index(original / "model").items():
            assert type(getattr(pipeline, name)).__name__ == cls
            assert type(getattr(pipeline, name)).__module__.startswith(f"{library}.")
    assert not place.mark.exists()
    capfd.readouterr()
    repository = ["--repository", str(entry.parent)]
    for command in (
        ["check", entry.name, *repository],
        ["inspect", entry.name, *repository],
        ["add-model", *words],
    ):
        code = builder.main(command)
        said = capfd.readouterr()
        assert not place.mark.exists(), command
        assert "Traceback" not in said.out + said.err
        assert code in (0, 1)
        if code:
            problems = [n for n in (said.out + said.err).splitlines() if n and n[0] != " "]
            assert len(problems) == 1, problems


def index(model: Path) -> dict[str, tuple[str, str]]:
    """Return component -> library and class, as a model's index names them."""
    given = json.loads((model / "model_index.json").read_text()).items()
    return {name: (v[0], v[1]) for name, v in given if isinstance(v, list) and v[0]}


def test_the_same_files_leave_the_mark_when_they_are_trusted(
    original: Path, tmp_path: Path
) -> None:
    """Without this the test above could not fail."""
    import torch

    place = Place(tmp_path / "model", tmp_path / "mark")
    shutil.copytree(original / "model", place.model)
    held = place.weights(UNET)
    torch.save(held, tmp_path / "zip.bin")
    torch.save(held, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(held))
    place.code("evil.py", "Evil")
    trusting: tuple[Callable[[], object], ...] = (
        lambda: torch.load(tmp_path / "zip.bin", weights_only=False),
        lambda: torch.load(tmp_path / "old.bin", weights_only=False),
        lambda: pickle.loads((tmp_path / "plain.bin").read_bytes()),
        lambda: runpy.run_path(str(place.model / "evil.py")),
    )
    for load in trusting:
        load()
        assert place.mark.exists()
        place.mark.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


SPOILS: dict[str, Callable[[Path], object]] = {
    "page": lambda path: path.write_text("<html>not found</html>"),
    "pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n"),
    "text": lambda path: path.write_text("cannot be had\nask again\n."),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(3, 250)) * 9),
    "cut": cut,
}


@pytest.mark.parametrize(
    ("name", "to", "how"),
    [
        *((ENCODER, "text_encoder/pytorch_model.bin", how) for how in SPOILS),
        *((UNET, f"{UNET}.bin", how) for how in ("page", "text", "cut")),
        *((ENCODER, None, how) for how in ("page", "cut")),
    ],
)
def test_damaged_files_are_not_called_pickles(
    original: Path, tmp_path: Path, name: str, to: str | None, how: str
) -> None:
    make = (lambda place: None) if to is None else weights_as_bin(name, to)
    entry, place, _ = write_attack(original, tmp_path, Attack(how, make, ()))
    file = place.model / (to or f"{name}.safetensors")
    SPOILS[how](file)
    with pytest.raises(ConfigError) as refused:
        load_entry(load_arguments(entry))
    text = str(refused.value)
    assert f"component '{name.partition('/')[0]}'" in text
    assert "git-lfs" in text or "incomplete or damaged: copy or download it again" in text
    assert "is a pickle" not in text
    assert "weights_only" not in text
    assert text.isprintable()
