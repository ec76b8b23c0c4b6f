# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line, weight files, and the inputs of generate."""

import json
import os
import struct
from pathlib import Path

import pytest

from builder.commands.generate import check_output, check_suffix, read_inputs
from builder.commands.inspect_model import Component, memory_estimate
from builder.entries import models
from triton_diffusers.contract import Tensor
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.weight_files import Weights, read_component

ACCEPTED = {
    t.name: t
    for t in (
        Tensor("prompt", "TYPE_STRING", (-1,)),
        Tensor("seed", "TYPE_INT64", (-1,)),
        Tensor("guidance_scale", "TYPE_FP64", (1,)),
        Tensor("output_base64", "TYPE_BOOL", (1,)),
        Tensor("image", "TYPE_UINT8", (-1, -1, -1, -1)),
        Tensor("image_bytes", "TYPE_STRING", (-1,)),
    )
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Some Model"
    folder.mkdir()
    return folder


def test_a_hub_id_stays_as_it_is(tmp_path):
    assert models.model_parameter("Qwen/Qwen-Image", tmp_path) == "Qwen/Qwen-Image"


@pytest.mark.parametrize(
    ("bare", "found"),
    [
        ("Wan2.2-T2V-A14B-Diffusers", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
        ("wan2.2-t2v-a14b-diffusers", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
        ("Qwen-Image", "Qwen/Qwen-Image"),
        ("stable-diffusion-v1-5", "stable-diffusion-v1-5/stable-diffusion-v1-5"),
        ("Wan2.1-T2V-1.3B-Diffusers", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
        ("Qwen-Image-Edit-2511", "Qwen/Qwen-Image-Edit-2511"),
        ("FLUX.1-schnell", "black-forest-labs/FLUX.1-schnell"),
        ("stable-diffusion-xl-base-1.0", "stabilityai/stable-diffusion-xl-base-1.0"),
        ("LTX-Video", "Lightricks/LTX-Video"),
    ],
)
def test_a_model_without_its_owner_is_found(bare, found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert models.model_parameter(bare, tmp_path / "repo" / "a") == found
    assert f"the hub's {found}" in capsys.readouterr().err
    (tmp_path / bare).mkdir()
    assert models.model_parameter(bare, tmp_path / "repo" / "a") == str(tmp_path / bare)


@pytest.mark.parametrize("text", ["flux.1-dev.safetensors", "my-model", "Qwen-Image-Tuned"])
def test_what_looks_like_a_file_or_a_folder_here_is_not_sought_elsewhere(
    text, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen-Image-Tune").mkdir()
    with pytest.raises(ConfigError, match="does not exist"):
        models.model_parameter(text, tmp_path / "repo" / "a")


def test_a_folder_is_absolute(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.model_parameter("Some Model", tmp_path / "repo" / "a") == str(model)


def test_a_folder_inside_the_entry_is_relative(tmp_path, monkeypatch):
    (tmp_path / "repo" / "a" / "pipeline").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert models.model_parameter("repo/a/pipeline/", Path("repo/a")) == "pipeline"


def test_home_is_expanded(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.model_parameter("~/Some Model", tmp_path / "x") == str(model)


@pytest.mark.parametrize("text", ["./x", "/x/y", "~/x", "x", "a/b/c", "a/", "/", "../x/y"])
def test_a_folder_that_does_not_exist(text, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if not os.path.isdir(text):
        with pytest.raises(ConfigError, match="does not exist: give a folder"):
            models.model_parameter(text, tmp_path / "entry")


@pytest.mark.parametrize("text", ["onne.safetensors", "./one.safetensor", "sub/onne.safetensors"])
def test_a_checkpoint_that_does_not_exist_gets_the_near_miss(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for folder in (tmp_path, tmp_path / "sub"):
        (folder / "one.safetensors").write_text("")
    with pytest.raises(ConfigError, match=r"a checkpoint file .* Did you mean 'one.safetensors'"):
        models.model_parameter(text, tmp_path / "entry")


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a file"):
        models.model_parameter(str(tmp_path / "model_index.json"), tmp_path)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Qwen/Qwen-Image", "qwen-image"), ("/models/Tiny/", "tiny"), ("./A.B", "a.b")],
)
def test_default_names(text, name):
    assert models.default_name(text) == name


def test_offline_is_decided_quickly_and_once(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    models.go_offline_unless_reachable()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_ENDPOINT", "not a url")
    models.go_offline_unless_reachable()  # already offline: nothing is asked


def write_safetensors(path: Path, **tensors: tuple[str, list[int]]) -> None:
    header = {n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, (d, s) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(100))


def test_weights_are_read_from_headers(tmp_path):
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", a=("F16", [2, 3]))
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", b=("F16", [4]), c=("F32", []))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    weights = read_component(tmp_path)
    assert (weights.parameters, weights.dtypes) == (11, ("F16", "F32"))
    assert weights.size == sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))


def test_the_variant_is_chosen(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", a=("F32", [8]))
    write_safetensors(tmp_path / "model.fp16-00001-of-00001.safetensors", a=("F16", [7]))
    assert read_component(tmp_path).parameters == 8
    assert read_component(tmp_path, "fp16").parameters == 7
    assert read_component(tmp_path, "other").parameters == 8


def test_bin_files_have_a_size_only(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    assert read_component(tmp_path) == Weights(1000)
    assert read_component(tmp_path / "none") == Weights()


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 3) + b"{x}"])
def test_broken_safetensors_are_named(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a readable"):
        read_component(tmp_path)


def test_memory_estimate():
    parts = [Component("unet", "UNet", Weights(4 * 2**30, (("F32", 2**30),))), Component("x", "Y")]
    assert "2.00 GiB in bfloat16 or 4.00 GiB in float32" in memory_estimate(parts, "auto")
    assert "2.00 GiB in float16," in memory_estimate(parts, "float16")
    assert "unknown" in memory_estimate(parts[1:], "auto")


def test_inputs_are_typed_by_the_model(tmp_path):
    picture = tmp_path / "a=b.png"
    picture.write_text("")
    words = ["--prompt=a = b", "--seed=1", "--seed=-2", "--guidance-scale=1e-1"]
    words += ["--output-base64=TRUE", f"--image={picture}"]
    assert read_inputs(words, ACCEPTED, "m") == {
        "prompt": "a = b",
        "seed": [1, -2],
        "guidance_scale": 0.1,
        "output_base64": True,
        "image": picture,
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--promp=x", "Did you mean 'prompt'"),
        ("--seed=x", "'x' is not a whole number"),
        ("--seed=1.5", "not a whole number"),
        ("--guidance-scale=x", "not a number"),
        ("--output-base64=1", "not true or false"),
        ("--image=/none.png", "file '/none.png' does not exist"),
    ],
)
def test_wrong_inputs_are_named(word, message):
    with pytest.raises(ConfigError, match=message):
        read_inputs([word], ACCEPTED, "m")


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path):
    assert check_output(tmp_path / "a.PNG") == tmp_path / "a.PNG"
    for bad, message in (("a", "suffix"), ("a.xyz", "suffix"), ("no/a.png", "'.*no' does not")):
        with pytest.raises(ConfigError, match=message):
            check_output(tmp_path / bad)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        check_output(tmp_path / "folder.png")


@pytest.mark.parametrize(
    ("outputs", "fits", "fails"),
    [
        (["images", "media", "seed"], "png jpg webp bmp npz npy", "wav mp4 gif"),
        (["frames", "media"], "mp4 gif npz", "png wav flac"),
        (["audios", "sampling_rate"], "wav flac npy", "png mp4"),
        (["frames", "audios"], "mp4 wav", "png"),
        (["latents"], "npz", "png wav"),
    ],
)
def test_a_suffix_fits_what_the_model_makes(outputs, fits, fails):
    for suffix in fits.split():
        check_suffix(Path(f"x.{suffix}"), outputs, "m")
        check_suffix(Path(f"x.{suffix.upper()}"), outputs, "m")
    for suffix in fails.split():
        with pytest.raises(ConfigError, match=rf"'m' makes no \.{suffix}; accepted: .*\.npz"):
            check_suffix(Path(f"x.{suffix}"), outputs, "m")


def test_memory_estimate_of_a_type_per_component():
    sizes = {"unet": 2**30, "vae": 2**29}
    parts = [Component(n, "X", Weights(4 * c, (("F32", c),))) for n, c in sizes.items()]
    told = memory_estimate(parts, {"default": "bfloat16", "vae": "float32"})
    assert "about 4.00 GiB in those types" in told
