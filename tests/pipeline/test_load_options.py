# SPDX-License-Identifier: Apache-2.0
"""Load-time options on real tiny pipelines: what each changes, and what is refused."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import ask, draw
from tests.tiny import save
from tests.tiny.load_options import OWN_PIPELINE, save_code, save_lora
from tests.tiny.single_file import save_single_file
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models; it stands for the entry's folder too."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("stable-diffusion", "flux", "wan-t2v", "ddpm"):
        save(name, folder)
    return folder


def _load(models: Path, model: str = "stable-diffusion", **options: Any) -> LoadedPipeline:
    return load_pipeline(ServeConfig(model=model, **options), models, "cpu")


_draw = partial(draw, prompt="a")


def _info(loaded: LoadedPipeline) -> dict[str, Any]:
    return dict(json.loads(ask(loaded, prompt="a")["info"][0]))


@pytest.fixture(scope="module")
def plain(models: Path) -> np.ndarray:
    return _draw(_load(models))


def test_a_scheduler_is_replaced(models: Path, plain: np.ndarray) -> None:
    from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline

    loaded = _load(
        models,
        scheduler={"class": "EulerDiscreteScheduler", "timestep_spacing": "trailing"},
    )
    assert type(loaded.pipeline.scheduler) is EulerDiscreteScheduler
    assert loaded.pipeline.scheduler.config.timestep_spacing == "trailing"
    alone = StableDiffusionPipeline.from_pretrained(models / "stable-diffusion")
    config = alone.scheduler.config
    assert loaded.pipeline.scheduler.config.beta_start == config.beta_start
    assert not np.array_equal(_draw(loaded), plain)
    assert not loaded.warnings


def test_the_config_of_the_models_own_scheduler_is_changed(models: Path) -> None:
    loaded = _load(models, model="flux", scheduler={"shift": 2.5})
    assert loaded.pipeline.scheduler.config.shift == 2.5


def test_a_scheduler_that_is_not_listed_as_compatible_is_tried(models: Path) -> None:
    loaded = _load(models, model="flux", scheduler="FlowMatchHeunDiscreteScheduler", warmup="none")
    assert "compatible" in loaded.warnings[0]
    with pytest.raises(ConfigError, match="with 'scheduler' a small call fails"):
        _load(models, scheduler="FlowMatchEulerDiscreteScheduler")


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("EulerDiscretScheduler", "Did you mean 'EulerDiscreteScheduler'"),
        ("FluxPipeline", "class 'FluxPipeline' is not known"),
        ({"class": "EulerDiscreteScheduler", "beta_strt": 1}, "Did you mean 'beta_start'"),
        ({"clas": "EulerDiscreteScheduler"}, "config 'clas' is not known to DDIMScheduler"),
        ({"class": 3}, "must be the name of a class"),
        ({}, "is empty"),
        ("SchedulerMixin", "class 'SchedulerMixin' is not known"),
        ({"beta_start": "abc"}, "does not take this config"),
    ],
)
def test_wrong_schedulers_are_refused(models: Path, scheduler: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter 'scheduler'.*{words}"):
        _load(models, scheduler=scheduler)


def test_scheduler_and_flow_shift_contradict(models: Path) -> None:
    with pytest.raises(ConfigError, match="'scheduler' and 'flow_shift' both"):
        _load(models, model="wan-t2v", scheduler={"shift": 3.0}, flow_shift=3.0)


@pytest.fixture(scope="module")
def lora(models: Path) -> Path:
    return save_lora(models)


def test_an_adapter_equals_plain_diffusers(models: Path, lora: Path, plain: np.ndarray) -> None:
    from diffusers import StableDiffusionPipeline

    loaded = _load(models, lora={"path": "lora", "scale": 0.5})
    assert loaded.facts["lora_layers"] == {"lora_0": 16}
    alone = StableDiffusionPipeline.from_pretrained(models / "stable-diffusion")
    alone.load_lora_weights(lora.parent, adapter_name="x")
    alone.set_adapters(["x"], [0.5])
    drawn = _draw(loaded)
    assert np.array_equal(drawn, _of_plain(alone))
    assert not np.array_equal(drawn, plain)


def _of_plain(pipeline: Any) -> np.ndarray:
    import torch

    call = {"height": 32, "width": 32, "num_inference_steps": 2}
    result = pipeline("a", generator=torch.Generator().manual_seed(1), **call)
    return np.stack([np.asarray(image) for image in result.images])


def test_two_adapters_that_cancel_out(models: Path, lora: Path, plain: np.ndarray) -> None:
    both = [
        {"path": str(lora), "scale": 0.5},
        {"path": "lora", "weight_name": lora.name, "scale": -0.5, "adapter_name": "back"},
    ]
    loaded = _load(models, lora=both)
    assert loaded.facts["lora_layers"] == {"lora_0": 16, "back": 16}
    assert np.abs(_draw(loaded).astype(int) - plain).max() <= 1


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        ("flux", "lora", "changes no layer of FluxPipeline"),
        ("stable-diffusion", "./nothing", "does not exist"),
        ("stable-diffusion", "stable-diffusion", r"holds no .safetensors or .bin file"),
        ("ddpm", "lora", "has no effect on DDPMPipeline"),
    ],
)
def test_wrong_adapters_are_refused(
    models: Path, lora: Path, model: str, given: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"parameter 'lora'.*{words}"):
        _load(models, model=model, lora=given)


@pytest.mark.parametrize("storage", ["float8_e4m3fn", "float8_e5m2"])
def test_layerwise_casting_stores_eight_bits(models: Path, storage: str, plain: Any) -> None:
    loaded = _load(models, layerwise_casting=storage)
    assert loaded.facts["layerwise_casting"] == ["unet"]
    stored = {str(p.dtype) for p in loaded.pipeline.unet.parameters()}
    assert f"torch.{storage}" in stored
    drawn = _draw(loaded)
    assert not np.array_equal(drawn, plain)
    assert np.abs(drawn.astype(int) - plain).mean() < 20


def test_channels_last_changes_the_format(models: Path, plain: np.ndarray) -> None:
    import torch

    loaded = _load(models, channels_last=True)
    assert loaded.facts["channels_last"] == ["unet", "vae"]
    weight = loaded.pipeline.unet.conv_in.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert np.abs(_draw(loaded).astype(int) - plain).max() <= 1


def test_channels_last_has_no_effect_on_video(models: Path) -> None:
    with pytest.raises(ConfigError, match="'channels_last' has no effect on WanPipeline"):
        _load(models, model="wan-t2v", channels_last=True)


def test_each_component_may_have_its_type(models: Path) -> None:
    import torch

    given = {"default": "float32", "text_encoder": "bfloat16", "transformer": "bfloat16"}
    loaded = _load(models, model="wan-t2v", dtype=given)
    assert loaded.pipeline.transformer.patch_embedding.weight.dtype is torch.bfloat16
    assert next(loaded.pipeline.vae.parameters()).dtype is torch.float32
    assert loaded.dtype == given
    # a vae of another type than its denoiser does not fit Stable Diffusion
    with pytest.raises(ConfigError, match="with 'dtype' a small call fails"):
        _load(models, dtype={"vae": "bfloat16"})
    with pytest.raises(ConfigError, match=r"component 'vea' .* Did you mean 'vae'"):
        _load(models, dtype={"vea": "bfloat16"})
    with pytest.raises(ConfigError, match="'float8' is not one of"):
        _load(models, dtype={"vae": "float8"})


def test_a_single_file_gives_the_same_picture(models: Path, plain: np.ndarray) -> None:
    from diffusers import StableDiffusionPipeline

    folder = models / "stable-diffusion"
    file = models / "one.safetensors"
    save_single_file(StableDiffusionPipeline.from_pretrained(folder), file)
    options = {"pipeline_class": "StableDiffusionPipeline"}
    config = {"diffusers_load_kwargs": {"config": "stable-diffusion"}}
    assert np.array_equal(_draw(_load(models, model=file.name, **options, **config)), plain)
    for wrong, words in (
        ({}, "does not name its pipeline: set pipeline_class"),
        (options, r"name a folder with them in diffusers_load_kwargs: {\"config\""),
        (options | config | {"variant": "fp16"}, "'variant' has no effect on a single file"),
        (options | config | {"quantization_config": "int8"}, "has no effect on a single file"),
        ({"pipeline_class": "DDPMPipeline"}, "DDPMPipeline loads no single file"),
    ):
        with pytest.raises(ConfigError, match=words):
            _load(models, model=file.name, **wrong)


def test_an_own_pipeline_class_is_served(models: Path) -> None:
    code = models / "code"
    save_code(code)
    for given in ("code", "code/pipeline.py", str(code)):
        loaded = _load(models, custom_pipeline=given)
        assert loaded.signature.pipeline_class == "MyPipeline"
        assert list(loaded.signature.parameters)[:2] == ["prompt", "height"]
    assert np.array_equal(_draw(loaded, prompt="boat"), _draw(_load(models), prompt="boat"))
    (code / "two.py").write_text(OWN_PIPELINE + OWN_PIPELINE.replace("MyPipeline", "Other"))
    with pytest.raises(ConfigError, match=r"defines 2 classes .*MyPipeline, Other"):
        _load(models, custom_pipeline="code/two.py")
    two = _load(models, custom_pipeline="code/two.py", pipeline_class="Other")
    assert two.signature.pipeline_class == "Other"
    for given, words in (
        ("code/none.py", "no such file"),
        ("code/words.py", "defines 0 classes"),
        ("stable-diffusion", "a folder that has a pipeline.py"),
        ("lpw_stable_diffusion", "set trust_remote_code"),
    ):
        with pytest.raises(ConfigError, match=words):
            _load(models, custom_pipeline=given)


def test_a_models_own_code_runs_only_when_trusted(models: Path, tmp_path: Path) -> None:
    model = tmp_path / "own"
    shutil.copytree(models / "stable-diffusion", model)
    save_code(model)
    index = json.loads((model / "model_index.json").read_text())
    index["_class_name"] = ["pipeline", "MyPipeline"]
    (model / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"brings its own code .* trust_remote_code"):
        _load(tmp_path, model="own")
    loaded = _load(tmp_path, model="own", trust_remote_code=True)
    assert loaded.signature.pipeline_class == "MyPipeline"
    assert _draw(loaded).shape == (1, 32, 32, 3)


def test_a_pipeline_in_a_subfolder(models: Path, plain: np.ndarray) -> None:
    root = models.parent
    loaded = _load(root, model=models.name, subfolder="stable-diffusion")
    assert np.array_equal(_draw(loaded), plain)
    for wrong in ("nothing", "../../etc"):
        with pytest.raises(ConfigError, match=f"has no folder '{wrong}'"):
            _load(root, model=models.name, subfolder=wrong)


@pytest.mark.parametrize("mode", ["regional", "full"])
def test_compiled_denoisers_draw_the_same(models: Path, plain: np.ndarray, mode: str) -> None:
    said: list[str] = []
    config = ServeConfig(model="stable-diffusion", torch_compile=mode, warmup="32x32")
    loaded = load_pipeline(config, models, "cpu", said.append)
    assert loaded.facts["compiled"] == ["unet"]
    assert said == ["warm-up call 1: {'width': 32, 'height': 32}"]
    assert np.abs(_draw(loaded).astype(int) - plain).max() <= 1


def test_a_denoiser_without_repeated_blocks_is_not_compiled_by_region(models: Path) -> None:
    with pytest.raises(ConfigError, match="no denoiser with repeated blocks; use full"):
        _load(models, model="ddpm", torch_compile="regional")


def test_warm_up_makes_the_listed_calls(models: Path) -> None:
    said: list[str] = []
    config = ServeConfig(model="stable-diffusion", warmup="32x32,64x32")
    load_pipeline(config, models, "cpu", said.append)
    assert [text.partition(": ")[0] for text in said] == ["warm-up call 1", "warm-up call 2"]


@pytest.mark.parametrize(
    ("warmup", "words"),
    [
        ([{"num_inference_step": 3}], "Did you mean 'num_inference_steps'"),
        ("32x32x9", "argument 'num_frames' is not known"),
        ([{"image": "x.png"}], "argument 'image' is not known"),
        ([{"height": "32"}], "'height' must be integer"),
        ([{"timesteps": [1, 2]}], "the warm-up call with .* fails"),
    ],
)
def test_wrong_warm_up_is_refused(models: Path, warmup: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _load(models, warmup=warmup)


def test_a_warm_up_leaves_no_trace(models: Path, plain: np.ndarray) -> None:
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    loaded = _load(models, warmup="32x32")
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(_draw(loaded), plain)


@pytest.mark.parametrize(
    "options",
    [
        {"enable_cpu_offload": True},
        {"enable_layerwise_offload": True},
        {"enable_group_offload": "block_level"},
        {"device_map": "cpu"},
    ],
)
def test_offload_without_a_gpu_is_refused(models: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs a GPU, and this instance runs on the CPU"):
        _load(models, **options)


@pytest.mark.parametrize("kind", ["block_level", "leaf_level"])
def test_group_offload_hooks_change_nothing(models: Path, plain: np.ndarray, kind: str) -> None:
    """The hooks themselves run on a CPU too: from host memory to host memory."""
    from triton_diffusers.placement.placement import choose_placement, place

    loaded = _load(models)
    config = ServeConfig(model="m", enable_group_offload=kind)
    told = place(loaded.pipeline, choose_placement(config), config, "cpu")
    assert told == "cpu, groups of layers in turn (enable_group_offload)"
    assert np.array_equal(_draw(loaded), plain)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (
            "stable-diffusion",
            {"diffusers_load_kwargs": {"torch_dtype": {"unet": "bfloat16"}}},
            "with 'dtype' a small call fails",
        ),
        (
            "stable-diffusion",
            {"scheduler": {"prediction_type": "foo"}},
            "with 'scheduler' a small call fails.*prediction_type",
        ),
        ("flux", {"scheduler": "DDIMScheduler"}, "with 'scheduler' a small call fails"),
        (
            "flux",
            {"scheduler": "DDIMScheduler", "warmup": "32x32"},
            "parameter 'scheduler': choose another",
        ),
        (
            "stable-diffusion",
            {"scheduler": {"class": "EulerDiscreteScheduler", "beta_start": 5}},
            "its output is NaN",
        ),
        ("flux", {"scheduler": {"shift": 0}}, "its output is NaN"),
        ("wan-t2v", {"boundary_ratio": 0.5}, "has no transformer_2"),
        ("wan-t2v", {"diffusers_load_kwargs": {"boundary_ratio": 0.5}}, "has no transformer_2"),
        ("ddpm", {"vae_use_tiling": True}, "'vae_use_tiling' has no effect on DDPMPipeline"),
        ("stable-diffusion", {"max_in_flight": 4}, "'max_in_flight' has no effect without"),
        ("stable-diffusion", {"max_batch": 4}, "'max_batch' has no effect without"),
        ("stable-diffusion", {"revision": "main"}, "'revision' has no effect on the folder"),
        ("stable-diffusion", {"dtype": {"tokenizer": "float16"}}, "'tokenizer' .* has no weights"),
    ],
)
def test_what_would_break_each_request_is_refused(
    models: Path, model: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        _load(models, model=model, **options)


def test_loading_without_low_memory_use_works(models: Path, plain: np.ndarray) -> None:
    loaded = _load(models, diffusers_load_kwargs={"low_cpu_mem_usage": False})
    assert np.array_equal(_draw(loaded), plain)


def test_what_is_given_twice_is_a_warning(models: Path) -> None:
    loaded = _load(models, dtype="bfloat16", diffusers_load_kwargs={"torch_dtype": "float32"})
    assert loaded.dtype == "float32"
    assert any("given twice" in warning for warning in loaded.warnings)


def test_a_lora_is_one_file(models: Path, lora: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(lora)
    save_file(weights, tmp_path / "a.safetensors")
    save_file({n: w * 0 for n, w in weights.items()}, tmp_path / "b.safetensors")
    for given, words in (
        (str(tmp_path), "holds several files: a.safetensors, b.safetensors; say which one"),
        ({"path": str(lora), "weight_name": "x"}, "is a file already"),
        (str(tmp_path / "b.safetensors"), "its weights are all zero"),
        ({"path": ""}, "each adapter is a path"),
    ):
        with pytest.raises(ConfigError, match=words):
            _load(models, lora=given)
    chosen = _load(models, lora={"path": str(tmp_path), "weight_name": "a.safetensors"})
    assert chosen.facts["lora_layers"] == {"lora_0": 16}


def test_black_pictures_are_told(models: Path) -> None:
    """Where the operator makes no trial call, each answer says it."""
    wrong = {"class": "EulerDiscreteScheduler", "beta_start": 5}
    loaded = _load(models, scheduler=wrong, warmup="none")
    notes = _info(loaded)["warnings"]
    assert any("NaN and are black" in note for note in notes), notes
