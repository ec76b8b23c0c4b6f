# SPDX-License-Identifier: Apache-2.0
"""add-model, check and inspect on a folder that holds model_index.json and no weights."""

import json
import os
import re
from pathlib import Path

import pytest

from builder import main as builder
from tests.calls_counted import ONCE, counted
from tests.unit.builder.test_models import write_safetensors
from triton_diffusers.loading.features import check, check_alone

INDEX = {
    "_class_name": "StableDiffusionImg2ImgPipeline",
    "_diffusers_version": "0.42.1",
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
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


def test_the_example_sends_what_the_pipeline_starts_from(run, model):
    code, out, _ = run("add-model", model)
    assert code == 0
    (example,) = re.findall("^call it: .*", out, re.M)
    assert " --image FILE " in example


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
        (["--diffusers-load-kwargs", '{"torch_dtype": "float61"}'], "'float61' is not one of auto"),
        (["--diffusers-load-kwargs", '{"unet": null}'], "cannot do without its component 'unet'"),
        (["--diffusers-load-kwargs", '{"flow_shift": 5}'], "an option of the entry: set parameter"),
        (["--diffusers-load-kwargs", '{"vae": "/models/vae"}'], "'vae' is a component of"),
        (["--diffusers-load-kwargs", '{"unet": ["diffusers", "x"]}'], "'unet' is a component of"),
        (["--diffusers-load-kwargs", '{"image_encoder": "a/b"}'], "'image_encoder' is a component"),
        (["--diffusers-load-kwargs", '{"safety_checker": false}'], "'safety_checker' is a compon"),
        (
            [
                *("--pipeline-class", "StableDiffusionControlNetPipeline"),
                *("--diffusers-load-kwargs", '{"controlnet": "/models/canny"}'),
            ],
            "'controlnet' is a component of StableDiffusionControlNetPipeline, which text",
        ),
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


def test_settings_of_the_pipeline_are_no_components(run, model):
    kwargs = '{"requires_safety_checker": false, "safety_checker": null}'
    assert run("add-model", model, "--diffusers-load-kwargs", kwargs)[0] == 0


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ({"unet": ["fp16"]}, "fp16"),
        ({"unet": ["fp16", "bf16"], "vae": ["fp16"]}, "fp16"),
        ({"unet": ["bf16", "fp16"]}, "bf16 or fp16"),
        ({"unet": ["fp16"], "text_encoder": [""]}, "fp16"),
        ({"unet": ["fp16", ""]}, None),
        ({"unet": [""]}, None),
    ],
)
def test_a_folder_of_one_variant_asks_for_it(run, model, there, wanted):
    for component, variants in there.items():
        (model / component).mkdir()
        for variant in variants:
            name = f"diffusion_pytorch_model{'.' if variant else ''}{variant}.safetensors"
            write_safetensors(model / component / name, a=("F16", [8]))
    code, _, err = run("add-model", model)
    assert code == (1 if wanted else 0)
    if wanted:
        assert f"set variant to {wanted}\n" in err
        assert run("add-model", model, "--variant", "fp16")[0] == 0


def test_force_names_the_options_that_it_drops(run, model):
    first = ["--variant", "fp16", "--max-queue", "8", "--max-steps", "9", "--decoupled"]
    assert run("add-model", model, *first)[0] == 0
    code, _, err = run("add-model", model, "--force", "--max-steps", "1000")
    assert code == 0
    assert err.startswith("warning: the entry that is replaced also set ")
    assert "set max_queue, variant, decoupled: give" in err
    assert run("add-model", model, "--force")[2] == ""
    assert run("add-model", model, "--force", "--warmup", "none")[2] == ""
    assert "also set warmup: give it again to keep it" in run("add-model", model, "--force")[2]


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


def test_device_map_places_one_copy(run, model, tmp_path):
    assert run("add-model", model, "--device-map", "balanced")[0] == 0
    edit(tmp_path, "{ count: 1 kind: KIND_MODEL }", "{ count: 2 kind: KIND_MODEL }")
    assert "makes 2 copies, but parameter 'device_map' places one" in run("check")[1]


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


def test_inputs_of_ip_adapters_are_not_listed_and_those_of_earlier_entries_are_fine(
    run, model, tmp_path
):
    """No option loads an adapter; what lists its inputs goes on to load."""
    assert run("add-model", model)[0] == 0
    assert 'name: "ip_adapter' not in config(tmp_path)
    images = '{ name: "ip_adapter_image" data_type: TYPE_UINT8 dims: [ -1, -1, -1, -1 ]'
    files = '{ name: "ip_adapter_image_bytes" data_type: TYPE_STRING dims: [ -1 ] optional: true },'
    edit(tmp_path, "input [\n", f"input [\n{images} optional: true }},\n{files}\n")
    assert run("check")[0] == 0
    edit(tmp_path, images, images.replace("UINT8", "FP32"))
    assert "has ip_adapter_image, which" in run("check")[1]


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


def test_every_command_plans_and_checks_once(run, model, tmp_path):
    commands = (("add-model", model, "--vae-use-tiling"), ("check", "tiny"), ("inspect", "tiny"))
    for command in commands:
        with counted(*ONCE, check, check_alone) as calls:
            assert run(*command)[0] == 0
        assert calls == dict.fromkeys(calls, 1), command


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("boundary_ratio", "0.5", "no effect on StableDiffusionImg2ImgPipeline"),
        ("warmup", "512", "parameter 'warmup': '512' is no size"),
        ("scheduler", "EulerDiscretScheduler", "Did you mean 'EulerDiscreteScheduler'?"),
    ],
)
def test_check_inspect_and_add_model_tell_the_same(run, model, tmp_path, key, value, told):
    assert run("add-model", model, "--vae-use-tiling")[0] == 0
    tiling = 'key: "vae_use_tiling" value { string_value: "true" }'
    edit(tmp_path, tiling, f'key: "{key}" value {{ string_value: "{value}" }}')
    code, out, err = run("inspect", "tiny")
    assert code == 0
    assert "UNet2DConditionModel" in out
    (problem,) = re.findall(r"warning: this would not load: (.*)\n", err)
    assert told in problem
    assert run("check", "tiny")[:2] == (1, f"FAIL  tiny: {problem}\n")
    words = ("add-model", model, "--force", f"--{key.replace('_', '-')}", value)
    assert run(*words) == (1, "", f"error: {problem}\n")


def test_inspect_works_for_folders_entries_and_known_names(run, model):
    assert run("add-model", model)[0] == 0
    by_folder, by_name = run("inspect", model)[1], run("inspect", "tiny")[1]
    assert "diffusers_version" not in by_folder
    assert re.search(r"parameter +value\W+diffusers_version +\d", by_name)
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


def test_inspect_shows_what_an_entry_changes(run, model):
    options = ["--scheduler", "EulerDiscreteScheduler", "--dtype", "float16", "--vae-use-tiling"]
    options += ["--diffusers-load-kwargs", '{"safety_checker": null}']
    assert run("add-model", model, *options)[0] == 0
    out = run("inspect", "tiny")[1]
    for parameter, value in (("dtype", "float16"), ("vae_use_tiling", "true")):
        assert re.search(rf"^ *{parameter} +{value}", out, re.M)
    assert "EulerDiscreteScheduler (by scheduler), was DDIMScheduler" in out
    assert '{"safety_checker": null}' in out


def test_inspect_reads_the_dtype_of_an_entry(run, model):
    weights = model / "unet" / "diffusion_pytorch_model.safetensors"
    weights.parent.mkdir()
    write_safetensors(weights, a=("F32", [2**20]))
    assert "2.0 MiB in bfloat16 or 4.0 MiB in float32" in run("inspect", model)[1]
    kwargs = '{"torch_dtype": "float16"}'
    assert run("add-model", model, "--diffusers-load-kwargs", kwargs)[0] == 0
    assert "take 2.0 MiB in float16, plus activations\n" in run("inspect", "tiny")[1]
    assert run("add-model", model, "--force", "--quantization-config", "int8_weight_only")[0] == 0
    assert "plus activations, before quantization_config\n" in run("inspect", "tiny")[1]


def test_inspect_looks_into_a_subfolder(run, model):
    assert run("inspect", model.parent, "--subfolder", "Tiny")[0] == 0
    code, _, err = run("inspect", model.parent, "--subfolder", "Tinny")
    assert code == 1
    assert "has no folder 'Tinny'" in err


def test_inspect_of_a_single_file_shows_the_file(run, tmp_path):
    file = tmp_path / "one.safetensors"
    write_safetensors(file, a=("F16", [2**20]), b=("F32", [8]))
    words = ["--pipeline-class", "StableDiffusionPipeline", "--max-queue", 7]
    assert run("add-model", file, *words)[0] == 0
    code, out, _ = run("inspect", "one")
    assert code == 0
    assert "StableDiffusionPipeline, text-to-image" in out
    assert re.search(r"^ *max_queue +7", out, re.M)
    assert re.search(r"^ *one\.safetensors .*F16, F32 +1,048,584", out, re.M)


def test_the_folder_that_configures_a_single_file_is_made_absolute(
    run, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_safetensors(tmp_path / "one.safetensors", a=("F16", [8]))
    words = ["one.safetensors", "--pipeline-class", "StableDiffusionPipeline"]
    words += ["--diffusers-load-kwargs"]
    assert run("add-model", *words, '{"config": "./Tiny"}')[0] == 0
    text = (tmp_path / "repo" / "one" / "config.pbtxt").read_text()
    assert f'{{"config": "{model}"}}' in text
    for given, told in (
        ("./Tinny", "config './Tinny' does not exist"),
        ("repo", f"config '{tmp_path / 'repo'}' has no model_index.json"),
    ):
        code, _, err = run("add-model", *words, json.dumps({"config": given}), "--name", "two")
        assert code == 1
        assert told in err


def test_a_folder_of_checkpoints_names_them(run, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("b.safetensors", "a.safetensors"):
        write_safetensors(folder / name, a=("F16", [8]))
    code, _, err = run("add-model", folder)
    assert code == 1
    assert "name the checkpoint file (of 2: a.safetensors, b.safetensors) and its class: " in err
    assert f"{folder / 'a.safetensors'} with --pipeline-class CLASS" in err


def test_check_names_every_wrong_parameter(run, model, tmp_path):
    assert run("add-model", model, "--max-queue", 7, "--dtype", "float16")[0] == 0
    edit(tmp_path, '"7"', '"many"')
    edit(tmp_path, '"float16"', '"fp16"')
    code, out, _ = run("check")
    assert code == 1
    first, second = out.splitlines()
    assert first.startswith("FAIL  tiny: parameter 'dtype': 'fp16' is not one of")
    assert second.startswith("FAIL  tiny: parameter 'max_queue': 'many' is not an integer")
    edit(tmp_path, 'key: "max_queue"', 'key: "tensor_parallel_size"')
    assert "'tensor_parallel_size' is not supported: one instance" in run("check")[1]


def test_check_tells_what_only_a_load_can_tell(run, model, monkeypatch):
    words = ["--scheduler", "EulerDiscreteScheduler", "--enable-cpu-offload"]
    code, _, err = run("add-model", model, *words)
    assert (code, err) == (0, "")
    monkeypatch.setattr("builder.commands.check._has_gpu", lambda: False)
    code, out, err = run("check")
    assert code == 0
    assert out.endswith(f"{model} (tried at load: scheduler, enable_cpu_offload)\n")
    assert "'enable_cpu_offload' needs a GPU; this machine has none" in err
    monkeypatch.setattr("builder.commands.check._has_gpu", lambda: True)
    assert run("check")[2] == ""


def test_json_in_double_quotes_gets_the_way_to_write_it(run, model, tmp_path):
    assert run("add-model", model, "--diffusers-call-kwargs", '{"strength": 0.5}')[0] == 0
    edit(tmp_path, """'{"strength": 0.5}'""", '"{"strength": 0.5}"')
    code, out, _ = run("check")
    assert code == 1
    assert """put the value in single quotes: string_value: '{"strength": 0.5}'""" in out
