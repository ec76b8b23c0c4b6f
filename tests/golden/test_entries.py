# SPDX-License-Identifier: Apache-2.0
"""Whole emitted entries, compared with files and read back through Triton's schema."""

import pytest

from builder import main as builder
from builder.commands.add_model import run as add_model
from builder.entries.config_pbtxt import parse_config, read_parameters, read_tensors
from builder.entries.models import KNOWN_MODELS
from tests.golden import cases
from triton_diffusers.config.options import ServeConfig

SAME = ("name", "data_type", "dims", "optional")


@pytest.mark.parametrize("name", cases.FOLDERS)
def test_entry_is_as_committed(name):
    for path, text in cases.files(name).items():
        committed = (cases.FOLDERS[name] / path).read_text(encoding="utf-8")
        assert text == committed, "after a wanted change: python -m tests.golden.cases"


@pytest.mark.parametrize("name", cases.FOLDERS)
def test_committed_entry_reads_back(name):
    text = (cases.FOLDERS[name] / "config.pbtxt").read_text(encoding="utf-8")
    message = parse_config(text)
    entry = cases.build(name)
    assert message.name == name
    assert ServeConfig.from_parameters(read_parameters(message)) == entry.config
    for messages, tensors in ((message.input, entry.inputs), (message.output, entry.outputs)):
        found = read_tensors(messages)
        assert [[getattr(t, f) for f in SAME[:3]] for t in found] == [
            [getattr(t, f) for f in SAME[:3]] for t in tensors
        ]
    optional = [i.optional for i in message.input]
    assert optional == [t.optional for t in entry.inputs]


@pytest.mark.parametrize("model", KNOWN_MODELS)
def test_known_models_need_no_network(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    repository = tmp_path / "repository"
    assert add_model(builder.parse(["add-model", model, "--repository", str(repository)])) == 0
    (entry,) = repository.iterdir()
    assert entry.name == model.split("/")[1].lower()
    assert f"({KNOWN_MODELS[model]}, " in capsys.readouterr().out
