# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, near misses, options generated from ServeConfig, quick help."""

import json
import resource
import subprocess
import sys

import pytest

from builder import main as builder
from triton_diffusers.config.options import ServeConfig, options, traits
from triton_diffusers.config.text import option_type, option_types, read_option
from triton_diffusers.config.unsupported import LOAD_FORMAT, RENAMED, UNSUPPORTED
from triton_diffusers.errors import ConfigError
from triton_diffusers.families.option import GROUPS

COMMANDS = ("add-model", "inspect", "check", "list", "remove", "serve", "probe", "generate")
WRITTEN_BY_US = {"model", "diffusers_version"}
LOAD_OPTIONS = [option for option in options() if traits(option).group]


def usage_error(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        builder.main(words)
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize("option", LOAD_OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("joint", ["=", " "])
def test_every_option_reaches_the_config(option, joint):
    texts = {str: "x", int: "7", float: "1.0", dict: '{"a": [1, null]}'}
    values = {str: "x", int: 7, float: 1.0, dict: {"a": [1, None]}, bool: True}
    kind = option_type(option)
    choices = option.metadata["choices"] or (("cuda",) if option.metadata["form"] else ())
    flag = "--" + option.name.replace("_", "-")
    words = (
        [flag] if kind is bool else f"{flag}{joint}{(choices or [texts[kind]])[-1]}".split(joint, 1)
    )
    if joint == "=" and kind is not bool:
        words = ["=".join(words)]
    args = builder.parse(["add-model", "m", *words])
    assert getattr(args, option.name) == (choices or [values[kind]])[-1]


def test_an_option_that_was_not_given_is_absent():
    args = builder.parse(["add-model", "m"])
    assert not [o.name for o in LOAD_OPTIONS if hasattr(args, o.name)]


def test_diffusers_version_is_no_option(capsys):
    assert "--diffusers-version" in usage_error(
        capsys, "add-model", "m", "--diffusers-version", "1"
    )


def test_each_load_option_stands_in_one_group_of_the_help():
    assert {traits(option).group for option in LOAD_OPTIONS} == set(GROUPS)
    assert {o.name for o in options()} - {o.name for o in LOAD_OPTIONS} == WRITTEN_BY_US


def test_other_names_mean_choices():
    assert any(traits(option).other_names for option in LOAD_OPTIONS)
    for option in LOAD_OPTIONS:
        assert set(traits(option).other_names.values()) <= set(option.metadata["choices"])


def test_examples_of_json_are_read():
    for option in LOAD_OPTIONS:
        example = traits(option).example
        assert bool(example) == bool({dict, list} & set(option_types(option)))
        assert not example or read_option(option, example) == json.loads(example)


def test_help_of_add_model_is_in_groups(capsys):
    with pytest.raises(SystemExit):
        builder.main(["add-model", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: builder add-model MODEL [options]\n")
    for heading in GROUPS:
        assert f"load-time options: {heading}" in text
    assert "docs/load-options.md" in text
    assert "or checkpoint file" in " ".join(text.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        builder.main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"example:\n  builder {command}" in text


def test_help_of_serve_tells_the_default_host(capsys):
    with pytest.raises(SystemExit):
        builder.main(["serve", "--help"])
    assert "default: 127.0.0.1" in capsys.readouterr().out


def test_help_of_add_model_lists_every_option(capsys):
    with pytest.raises(SystemExit):
        builder.main(["add-model", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in LOAD_OPTIONS:
        assert "--" + option.name.replace("_", "-") in text
        assert option.metadata["about"][:30] in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add-modl", "m"], "Did you mean 'add-model'?"),
        (["serv"], "Did you mean 'serve'?"),
        (["add-model"], "MODEL"),
        (["add-model", "m", "--vae-use-tilin"], "Did you mean '--vae-use-tiling'?"),
        (["add-model", "m", "--vae-use"], "unknown option '--vae-use'"),
        (["add-model", "m", "--dtype", "bf16"], "not one of auto, bfloat16"),
        (["add-model", "m", "--dtype", "bf16"], "Did you mean 'bfloat16'?"),
        (["add-model", "m", "--dtype", "fp16"], "Did you mean 'float16'?"),
        (["add-model", "m", "--dtype", "FP32"], "Did you mean 'float32'?"),
        (["add-model", "m", "--torch-compile", "regoinal"], "Did you mean 'regional'?"),
        (["add-model", "m", "--dtype"], "needs a value: one of auto, bfloat16, float16, float32"),
        (["add-model", "m", "--torch-compile"], "one of off, regional, full (see"),
        (["add-model", "m", "--revision"], "--revision needs a value: TEXT"),
        (["add-model", "m", "--enable-cpu-offload", "true"], "--enable-cpu-offload takes no value"),
        (["add-model", "--vae_use_tiling", "false", "m"], "--vae-use-tiling takes no value"),
        (["add-model", "m", "--vae-use-tiling=True"], "--vae-use-tiling takes no value"),
        (["add-model", "m", "--use-safetensors", "false"], "for false give --no-use-safetensors"),
        (["generate", "m", "--output", "x", "--protocol"], "a value: one of grpc, http"),
        (["serve", "m", "--verbose", "true"], "--verbose takes no value"),
        (["add-model", "m", "--diffusers-call-kwargs", "{a:1}"], "in '{a:1}'; write a JSON object"),
        (["add-model", "m", "--scheduler", "{a:1}"], '{"class": "UniPCMultistepScheduler"'),
        (["add-model", "m", "--lora", "{a:1}"], 'a JSON list such as [{"path":'),
        (
            ["add-model", "m", "--tensor_parallel_size", "2"],
            "'tensor_parallel_size' is not supported",
        ),
        (["add-model", "m", "--tensor-parallel-size=2"], "one process, on one device; for more"),
        (["add-model", "m", "--usp", "2"], "'usp' is not supported: one instance runs in one"),
        (["add-model", "m", "--ring=2"], "'ring' is not supported: one instance runs in one"),
        (["add-model", "m", "-tp", "2"], "'tp' is not supported"),
        (["add-model", "m", "--enable-sleep-mode"], "a model that is not needed is unloaded"),
        (["add-model", "m", "--diffusion-load-format", "dummy"], "serves real weights"),
        (["add-model", "m", "--diffusion-load-format=gguf"], "'gguf' is not known"),
        (["add-model", "m", "--torch-dtype", "half"], "Did you mean 'float16'?"),
        (["serve", "m", "--usp", "2"], "'usp' is not supported"),
        (["serve", "m", "--port", "1"], "Did you mean '--http-port'?"),
        (["add-model", "m", "--max-queue", "0"], "below 1"),
        (["add-model", "m", "--boundary-ratio", "9"], "above 1"),
        (["add-model", "m", "--device", "gpu"], "'gpu' is not cpu, cuda, cuda:N"),
        (["add-model", "m", "--max-queue", "many"], "not an integer"),
        (["add-model", "m", "--flow-shift", "nan"], "not a finite number"),
        (["add-model", "m", "--diffusers-call-kwargs", "{"], "malformed JSON"),
        (["add-model", "m", "--diffusers-call-kwargs", "[1]"], "expected a JSON object"),
        (["add-model", "m", "--instances", "0"], "count of 1 or more"),
        (["add-model", "m", "--gpus", "0,x"], "GPU numbers such as 0,1"),
        (["add-model", "m", "extra"], "unknown option 'extra'"),
        (["serve", "--http-port", "99999"], "not a port"),
        (["serve", "--htp-port", "1"], "Did you mean '--http-port'?"),
        (["serve", "x", "--log-verbose=1"], "Triton's own go last: -- --log-verbose=1"),
        (["check", "--", "--x"], "options after -- are for builder serve"),
        (["generate", "demo", "--prompt", "x"], "--output"),
        (["generate", "demo", "--output", "x.png", "--protocol", "ftp"], "ftp"),
    ],
)
def test_wrong_usage_is_one_line_and_2(words, message, capsys):
    assert message in usage_error(capsys, *words)


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (["--torch-dtype", "bfloat16"], "dtype", "bfloat16"),
        (["--torch_dtype=float16"], "dtype", "float16"),
        (["--quantization", "FP8"], "quantization_config", "FP8"),
        (["-q", "fp8"], "quantization_config", "fp8"),
        (["--diffusion-attention-backend", "FLASH_ATTN"], "attention_backend", "FLASH_ATTN"),
        (["--model-class-name", "WanPipeline"], "pipeline_class", "WanPipeline"),
        (["--lora-path", "a/b"], "lora", "a/b"),
        (["--max-generated-image-size", "4096"], "max_pixels", 4096),
        (["--diffusion-load-format", "diffusers", "--flow-shift", "3"], "flow_shift", 3.0),
    ],
)
def test_flags_of_vllm_omni_mean_ours(words, option, value):
    assert getattr(builder.parse(["add-model", "m", *words]), option) == value


@pytest.mark.parametrize("name", [*UNSUPPORTED, *RENAMED, LOAD_FORMAT])
def test_names_of_vllm_omni_are_refused_by_name(name, capsys):
    assert name not in {option.name for option in options()}
    assert set(RENAMED.values()) < {option.name for option in options()}
    with pytest.raises(ConfigError, match=f"'{name}' is "):
        ServeConfig.from_parameters({"model": "m", name: "1"})
    if name in UNSUPPORTED:
        text = usage_error(capsys, "add-model", "m", f"--{name.replace('_', '-')}", "2")
        assert f"'{name}' is not supported: {UNSUPPORTED[name]} (see" in text


def test_underscores_and_gpus_are_understood():
    args = builder.parse(["add-model", "m", "--vae_use_tiling", "--gpus", "1,0,1"])
    assert args.vae_use_tiling is True
    assert args.gpus == (1, 0)


def test_names_may_stand_behind_options():
    args = builder.parse(["serve", "a", "--repository", "r", "b", "--", "--log-verbose=1"])
    assert (args.names, args.repository) == (["a", "b"], "r")
    assert args.triton_options == ["--log-verbose=1"]


def test_inputs_of_generate_are_kept_apart():
    words = ["generate", "--seed", "-1", "demo", "--prompt=a = b", "--output", "x.png"]
    args = builder.parse([*words, "--num-inference-steps", "20", "--flag"])
    assert (args.name, args.output) == ("demo", "x.png")
    assert args.inputs == ["--seed=-1", "--prompt=a = b", "--num-inference-steps=20", "--flag=true"]


def test_no_command_prints_help_and_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as stopped:
        builder.main([])
    assert stopped.value.code == 2
    assert "add-model" in capsys.readouterr().out


def test_a_refusal_is_one_line_and_1(tmp_path, capsys):
    assert builder.main(["list", "--repository", str(tmp_path / "none")]) == 1
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert "add-model" in text


def test_an_unexpected_error_has_no_traceback(tmp_path, capsys, monkeypatch):
    def fail(args):
        raise RuntimeError("some\nthing")

    monkeypatch.setattr("builder.commands.list_models.run", fail)
    monkeypatch.delenv(builder.DEBUG, raising=False)
    assert builder.main(["list"]) == 1
    assert capsys.readouterr().err.startswith("error: RuntimeError: some thing (")
    monkeypatch.setenv(builder.DEBUG, "1")
    with pytest.raises(RuntimeError):
        builder.main(["list"])


def test_a_permission_that_is_missing_names_the_file(capsys, monkeypatch):
    def fail(args):
        raise PermissionError(13, "Permission denied", "/a/b")

    monkeypatch.setattr("builder.commands.list_models.run", fail)
    monkeypatch.delenv(builder.DEBUG, raising=False)
    assert builder.main(["list"]) == 1
    assert "error: no permission to read or write '/a/b'" in capsys.readouterr().err


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys, builder.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([n for n in sys.modules if n.split('.')[0] in HEAVY])"
    heavy = ("torch", "diffusers", "transformers", "tritonclient", "rich", "numpy", "pytriton")
    command = [sys.executable, "-c", code.replace("HEAVY", repr(heavy))]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.stdout.splitlines()[-1] == "[]"
    # processor time: a busy machine makes it no slower
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
