# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt: what is rendered is what Triton's own schema reads back."""

import ast
import dataclasses
from typing import Any

import pytest

from builder.entries.config_pbtxt import (
    MODEL_PY,
    Entry,
    parse_config,
    quote,
    read_parameters,
    read_tensors,
    render_config,
)
from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.config.text import option_type
from triton_diffusers.contract import EXTRA, IMAGES, SEED, Tensor
from triton_diffusers.errors import ConfigError

AWKWARD = [
    "plain",
    "",
    'double "quotes"',
    "single 'quotes'",
    "both \"kinds\" of 'quotes'",
    "back\\slash \\n \\",
    "new\nline\r\n\ttab",
    "digit after control \x011 \x7f2",
    "é ü 漢字 🦙",
    '{"prompt": "a \\"b\\" c", "x": [1, null]}',
    "# no comment } ] {",
]


def make_entry(**changes: Any) -> Entry:
    entry = Entry(
        name="tiny",
        pipeline_class="StableDiffusionPipeline",
        config=ServeConfig(model="owner/model", diffusers_version="0.42.1"),
        inputs=(Tensor("prompt", "TYPE_STRING", (-1,), optional=False), SEED, EXTRA),
        outputs=(IMAGES,),
    )
    return dataclasses.replace(entry, **changes)


def parse(entry: Entry) -> Any:
    return parse_config(render_config(entry))


def without_about(tensors: tuple[Tensor, ...]) -> list[tuple[Any, ...]]:
    return [(t.name, t.data_type, t.dims, t.optional) for t in tensors]


def test_rendered_config_parses_to_the_same_entry():
    entry = make_entry()
    message = parse(entry)
    assert (message.name, message.backend, message.max_batch_size) == ("tiny", "python", 0)
    assert without_about(read_tensors(message.input)) == without_about(entry.inputs)
    assert without_about(read_tensors(message.output)) == without_about(entry.outputs)
    assert ServeConfig.from_parameters(read_parameters(message)) == entry.config
    assert not message.model_transaction_policy.decoupled
    assert not message.HasField("dynamic_batching")


def test_text_says_max_batch_size_and_explains_every_block():
    text = render_config(make_entry())
    assert "\nmax_batch_size: 0 " in text
    assert text.count("#") >= 6
    assert max(map(len, text.splitlines())) < 160


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_survives(text):
    config = ServeConfig(model=text or "m", diffusers_call_kwargs={"prompt": text})
    message = parse(make_entry(config=config))
    assert ServeConfig.from_parameters(read_parameters(message)) == config


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_comments_stay_comments(text):
    entry = make_entry(inputs=(dataclasses.replace(SEED, about=text), EXTRA))
    assert without_about(read_tensors(parse(entry).input)) == without_about(entry.inputs)


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_every_option_survives(option):
    values = {str: "x", bool: True, int: 7, float: 1.0, dict: {"a": [0.1, None, "é"]}}
    value = (option.metadata["choices"] or [values[option_type(option)]])[-1]
    value = "cuda" if option.metadata["form"] else value
    config = dataclasses.replace(ServeConfig(model="m"), **{option.name: value})
    message = parse(make_entry(config=config))
    assert ServeConfig.from_parameters(read_parameters(message)) == config


@pytest.mark.parametrize(
    ("changes", "count", "kind", "gpus"),
    [
        ({}, 1, "KIND_AUTO", []),
        ({"instances": 3}, 3, "KIND_AUTO", []),
        ({"gpus": (0, 2), "instances": 2}, 2, "KIND_GPU", [0, 2]),
        ({"config": ServeConfig(model="m", device="cpu")}, 1, "KIND_CPU", []),
        ({"config": ServeConfig(model="m", device="cuda:1")}, 1, "KIND_MODEL", []),
    ],
)
def test_instance_group(changes, count, kind, gpus):
    message = parse(make_entry(**changes))
    (group,) = message.instance_group
    assert (group.count, group.Kind.Name(group.kind), list(group.gpus)) == (count, kind, gpus)


def test_decoupled():
    assert parse(make_entry(decoupled=True)).model_transaction_policy.decoupled


def test_json_is_readable_in_single_quotes():
    assert quote('{"height": 512}') == """'{"height": 512}'"""


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(ConfigError, match="UTF-8"):
        quote("\udcff")


def test_malformed_config_names_file_and_line():
    with pytest.raises(ConfigError, match=r"x/config.pbtxt .*2:1"):
        parse_config('name: "a"\nnonsense: 1', "x/config.pbtxt")


def test_model_py_is_short_and_imports_only_the_runtime():
    assert len(MODEL_PY.splitlines()) < 30
    tree = ast.parse(MODEL_PY)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == [
        "from triton_diffusers.serving import TritonPythonModel"
    ]


def test_model_py_says_how_to_install_the_runtime():
    with pytest.raises(ImportError, match=r"pip install .FOLDER\[runtime\]"):
        # outside a stub the runtime lacks Triton's module, as it would lack itself elsewhere
        exec(compile(MODEL_PY, "model.py", "exec"), {})
