# SPDX-License-Identifier: Apache-2.0
"""What an operator may change in config.pbtxt, and what `check` and the load refuse alike."""

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from builder import main as builder
from builder.entries.config_pbtxt import parse_config
from tests.golden import cases
from tests.server.hand_edits import EDITS, GROUP, Edit
from tests.unit.builder.test_add_model import INDEX
from triton_diffusers.config.pbtxt import FIELDS
from triton_diffusers.config.triton_fields import ALLOWED, check_loaded, check_text
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.entry import load_entry


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edits")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "model_index.json").write_text(json.dumps(INDEX))
    words = ["add-model", str(folder / "tiny"), "--repository", str(folder / "repo")]
    assert builder.main(words) == 0
    config = folder / "repo" / "tiny" / "config.pbtxt"
    (folder / "as-written").write_text(config.read_text())
    return config.parent


def edited(entry: Path, edit: Edit) -> str:
    text = edit.apply((entry.parents[1] / "as-written").read_text())
    (entry / "config.pbtxt").write_text(text)
    return text


def arguments(entry: Path, text: str) -> dict[str, str]:
    config = MessageToDict(parse_config(text), preserving_proto_field_name=True)
    return {"model_config": json.dumps(config), "model_repository": str(entry)}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_check_and_load_refuse_it_in_one_line(entry, edit, capsys):
    text = edited(entry, edit)
    assert builder.main(["check", "tiny", "--repository", str(entry.parent)]) == 1
    said = [capsys.readouterr().out]
    assert said[0].startswith("FAIL  tiny: ")
    assert said[0].count("\n") == 1
    if edit.passes:
        with pytest.raises(ConfigError) as refused:
            load_entry(arguments(entry, text))
        said.append(str(refused.value))
    for line in said:
        for word in edit.words:
            assert word in line


def test_the_table_is_long_enough():
    assert len({edit.name for edit in EDITS}) == len(EDITS) >= 60


@pytest.mark.parametrize(
    "edit",
    [
        Edit("nothing", "", ()),
        Edit("comment", "# a comment { of } mine", ()),
        Edit("two", "{ count: 2 kind: KIND_CPU }", (), GROUP),
        Edit("groups", "{ kind: KIND_CPU }, { name: 'b' kind: KIND_CPU }", (), GROUP),
        Edit("no-group", "", (), f"instance_group [ {GROUP} ]"),
        Edit("no-name", "", (), 'name: "tiny"'),
        Edit("no-batch-size", "", (), "max_batch_size: 0"),
        Edit("once", "model_transaction_policy { decoupled: false }", ()),
        Edit("longer", 'parameters: { key: "max_queue", value: { string_value: "9" } }', ()),
    ],
    ids=lambda edit: edit.name,
)
def test_what_works_is_ok(entry, edit, capsys):
    edited(entry, edit)
    assert builder.main(["check", "tiny", "--repository", str(entry.parent)]) == 0
    assert capsys.readouterr().out.startswith("ok    tiny")


@pytest.mark.parametrize("name", cases.FOLDERS)
def test_what_add_model_writes_is_ok(name):
    check_text((cases.FOLDERS[name] / "config.pbtxt").read_text(encoding="utf-8"))


FILLED = {
    "platform": "",
    "version_policy": {"latest": {"num_versions": 1}},
    "optimization": {"priority": "PRIORITY_DEFAULT", "input_pinned_memory": {"enable": True}},
    "default_model_filename": "model.py",
    "model_warmup": [],
    "metric_tags": {},
    "field_of_a_later_triton": {"x": 1},
    "instance_group": [{"kind": "KIND_CPU", "count": 1, "passive": False, "host_policy": ""}],
}
"""As Triton hands it to `initialize`; the rest of what it fills in is met by every server test."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"response_cache": {"enable": False}}, None),
        ({"response_cache": {"enable": True}}, "'response_cache'"),
        ({"dynamic_batching": {"preferred_batch_size": []}}, "'dynamic_batching'"),
        ({"version_policy": {"all": {}}}, "'version_policy'"),
        ({"default_model_filename": "other.py"}, "'default_model_filename'"),
        ({"instance_group": [{"name": "d_0", "passive": True}]}, "'d_0': field 'passive'"),
        ({"parameters": {"": {"string_value": "x"}}}, "no key"),
    ],
)
def test_a_configuration_of_a_load_request_is_held_against_the_same_list(tmp_path, changes, words):
    """It comes without a file: what Triton has filled in is no reason to refuse it."""
    if words is None:
        check_loaded(FILLED | changes, tmp_path / "none")
        return
    with pytest.raises(ConfigError, match=words):
        check_loaded(FILLED | changes, tmp_path / "none")


def test_fields_that_may_be_meant_are_those_that_are_allowed():
    inner = [name for fields in ALLOWED.values() for name in fields or ()]
    assert set(FIELDS) == {*ALLOWED, *inner, *ALLOWED["parameters"]["value"]}
