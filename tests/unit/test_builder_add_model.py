# SPDX-License-Identifier: Apache-2.0
"""add-model, check and inspect on a folder that holds model_index.json and no weights."""

import json
import os
import re
from pathlib import Path

import pytest

from builder import main as builder

INDEX = {
    "_class_name": "StableDiffusionImg2ImgPipeline",
    "_diffusers_version": "0.42.1",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "safety_checker": [None, None],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps(INDEX))
    return folder


@pytest.fixture
def run(tmp_path: Path, capsys):
    """Run a command on a repository below tmp_path; return exit code, output and errors."""

    def run_builder(command: str, *words: object) -> tuple[int, str, str]:
        code = builder.main([command, *map(str, words), "--repository", str(tmp_path / "repo")])
        captured = capsys.readouterr()
        assert captured.err.count("\n") == len(
            re.findall("^(?:error|warning): ", captured.err, re.M)
        )
        return code, captured.out, captured.err

    return run_builder


def edit(tmp_path: Path, old: str, new: str) -> None:
    config = tmp_path / "repo" / "tiny" / "config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def test_a_local_folder_without_weights(run, model, tmp_path):
    code, out, err = run("add-model", model, "--vae-use-tiling")
    assert (code, err) == (0, "")
    assert "StableDiffusionImg2ImgPipeline, image+text-to-image" in out
    assert f"builder serve tiny --repository {tmp_path / 'repo'}" in out
    assert "--prompt 'a lighthouse at dusk'" in out
    text = (tmp_path / "repo" / "tiny" / "config.pbtxt").read_text()
    assert f'"{model}"' in text
    assert 'key: "vae_use_tiling" value { string_value: "true" }' in text
    assert run("check", "tiny") == (0, f"ok    tiny: StableDiffusionImg2ImgPipeline, {model}\n", "")
    code, out, _ = run("add-model", model)
    assert code == 1


def test_dry_run_prints_the_files_and_writes_nothing(run, model, tmp_path):
    code, out, _ = run("add-model", model, "--dry-run", "--decoupled")
    assert code == 0
    assert "decoupled: true" in out
    assert "import TritonPythonModel" in out
    assert not (tmp_path / "repo").exists()


def test_call_kwargs_that_the_pipeline_does_not_take_are_warned_of(run, model):
    kwargs = json.dumps({"strenght": 0.5, "guidance_scale": 2})
    code, _, err = run("add-model", model, "--diffusers-call-kwargs", kwargs)
    assert code == 0
    assert "'strenght'" in err
    assert "Did you mean 'strength'?" in err
    code, _, err = run("check")
    assert code == 0
    assert "warning: tiny: diffusers_call_kwargs: argument 'strenght'" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--diffusers-call-kwargs", '{"generator": 1}'], "'generator' is reserved: send 'seed'"),
        (["--diffusers-call-kwargs", '{"output_type": "np"}'], "send 'output_format' instead"),
        (["--boundary-ratio", "0.9"], "'boundary_ratio' has no effect on StableDiffusionImg2Img"),
        (["--flow-shift", "3"], "'flow_shift' has no effect"),
        (["--pipeline-class", "StableDifusionPipeline"], "Did you mean 'StableDiffusionPipeline'?"),
        (["--pipeline-class", "UNet2DModel"], "UNet2DModel"),
        (["--pipeline-class", "os"], "os"),
        (["--diffusers-load-kwargs", '{"torch_dtyp": "float16"}'], "Did you mean 'torch_dtype'?"),
        (["--diffusers-load-kwargs", '{"torch_dtype": "float61"}'], "dtype 'float61'"),
        (["--diffusers-load-kwargs", '{"unet": null}'], "cannot do without its component 'unet'"),
        (["--name", ""], "'' cannot be a model's name"),
        (["--name", "a/b"], "'a/b' cannot be a model's name"),
        (["--device", "cpu", "--gpus", "0"], "give one of them"),
    ],
)
def test_refused_and_nothing_left(run, model, tmp_path, words, message):
    code, _, err = run("add-model", model, *words)
    assert code == 1
    assert message in err
    assert not (tmp_path / "repo").exists()


def test_force_names_the_options_that_it_drops(run, model):
    first = ["--variant", "fp16", "--max-queue", "8", "--max-steps", "9", "--decoupled"]
    assert run("add-model", model, *first)[0] == 0
    code, _, err = run("add-model", model, "--force", "--max-steps", "1000")
    assert code == 0
    assert err.startswith("warning: the entry that is replaced also set ")
    assert "set max_queue, variant, decoupled: give" in err
    assert run("add-model", model, "--force")[2] == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no model_index.json"),
        ("{", "cannot be read"),
        ("[1]", "_class_name"),
        ("{}", "_class_name"),
        ('{"_class_name": "NoSuchPipeline"}', "NoSuchPipeline"),
    ],
)
def test_a_broken_index_is_named(run, model, content, message):
    (model / "model_index.json").unlink()
    if content is not None:
        (model / "model_index.json").write_text(content)
    code, _, err = run("add-model", model)
    assert code == 1
    assert message in err


def test_an_unknown_hub_id_without_network_names_the_ways_out(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run("add-model", "nobody/nothing-of-that-name")
    assert code == 1
    for way in ("local folder", "--pipeline-class", "cache"):
        assert way in err
    assert "Did you mean" not in err
    assert run("add-model", "nobody/x", "--pipeline-class", "ZImagePipeline")[0] == 0


@pytest.mark.parametrize("model_id", ["Qwen/Qwen-Imag", "qwen/qwen-image"])
@pytest.mark.parametrize("command", ["add-model", "inspect"])
def test_a_misspelt_hub_id_gets_the_near_miss(run, monkeypatch, command, model_id):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run(command, model_id)
    assert code == 1
    assert "Did you mean 'Qwen/Qwen-Image'?" in err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("TYPE_FP64 dims: [ 1 ]", "TYPE_FP32 dims: [ 1 ]", "instead of TYPE_FP64 [1]"),
        ('name: "strength"', 'name: "strenght"', "input lacks strength"),
        ('backend: "python"', 'backend: "onnxruntime"', "backend is 'onnxruntime'"),
        ("max_batch_size: 0", "max_batch_size: 8", "max_batch_size is 8"),
        ('name: "tiny"', 'name: "huge"', "name is 'huge'"),
        ("instance_group [", "instance_grop [", "not a valid Triton model configuration"),
        ('key: "model"', 'key: "modle"', "Did you mean 'model'?"),
        ('key: "model"', 'key: "dtype"', "not one of auto"),
    ],
)
def test_check_finds_what_would_not_load(run, model, tmp_path, old, new, message):
    assert run("add-model", model)[0] == 0
    edit(tmp_path, old, new)
    code, out, _ = run("check")
    assert code == 1
    assert out.startswith("FAIL  tiny: ")
    assert out.count("\n") == 1
    assert message in out


def test_check_tells_the_version_that_an_entry_was_written_for(run, model, tmp_path):
    assert run("add-model", model)[0] == 0
    version = re.search(r'diffusers_version" value { string_value: "([\d.]+)"', config(tmp_path))[1]
    edit(tmp_path, f'"{version}"', '"0.1.0"')
    code, _, err = run("check")
    assert code == 0
    assert "written for diffusers 0.1.0" in err
    edit(tmp_path, 'name: "strength"', 'name: "other"')
    code, out, _ = run("check")
    assert code == 1
    assert "written for diffusers 0.1.0" in out
    assert "--force" in out


def test_check_goes_on_after_a_failure(run, model, tmp_path):
    assert run("add-model", model)[0] == 0
    assert run("add-model", model, "--name", "also")[0] == 0
    (tmp_path / "repo" / "also" / "1" / "model.py").unlink()
    code, out, _ = run("check")
    assert code == 1
    first, second = out.splitlines()
    assert "model.py is missing" in first
    assert second.startswith("ok    tiny")
    os.rename(model, tmp_path / "moved")
    assert "no such folder" in run("check", "tiny")[1]
    assert "Did you mean 'tiny'" in run("check", "tinny")[1]


def test_inspect_works_for_folders_entries_and_known_names(run, model):
    assert run("add-model", model)[0] == 0
    by_folder, by_name = run("inspect", model)[1], run("inspect", "tiny")[1]
    assert by_folder == by_name
    for text in ("UNet2DConditionModel", "image_bytes", "strength", "image+text-to-image"):
        assert text in by_name
    assert "safety_checker" not in by_name
    code, out, _ = run("inspect", "Qwen/Qwen-Image")
    assert code == 0
    assert "QwenImageTransformer2DModel" in out
    assert "memory: unknown" in out
    code, _, err = run("inspect", "nothing")
    assert code == 1
    assert "entries in" in err


def config(tmp_path: Path) -> str:
    return (tmp_path / "repo" / "tiny" / "config.pbtxt").read_text()
