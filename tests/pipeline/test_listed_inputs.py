# SPDX-License-Identifier: Apache-2.0
"""Every input that an entry of Stable Diffusion lists works, and means what the pipeline means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import load_tiny
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import RequestError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.run import run_call

CALL: dict[str, Any] = {"prompt": "a cat", "height": 32, "width": 32, "num_inference_steps": 3}
VALUES: dict[str, Any] = {
    "prompt": ["a cat", "a dog"],
    "height": 64,
    "width": 48,
    "num_inference_steps": 2,
    "timesteps": [900, 500, 100],
    "sigmas": [10.0, 3.0, 0.5],
    "guidance_scale": 2.5,
    "negative_prompt": "a bad one",
    "num_images_per_prompt": 2,
    "eta": 0.7,
    "guidance_rescale": 0.6,
    "clip_skip": 1,
}
EULER = ("timesteps", "sigmas")
"""Inputs that the model's own scheduler does not take."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def loaded(models: Path) -> LoadedPipeline:
    return load_tiny(models, "stable-diffusion")


def _served(loaded: LoadedPipeline, **given: Any) -> np.ndarray:
    tensors = {n: _tensor(v) for n, v in (CALL | {"seed": 1} | given).items()}
    return run_call(read_call(tensors, loaded), loaded, lambda done, total: None)["images"]


def _tensor(value: Any) -> np.ndarray:
    values = [value] if isinstance(value, str | int | float) else value
    texts = isinstance(values[0], str)
    return np.array([v.encode() for v in values], np.object_) if texts else np.array(values)


def _plain(models: Path, scheduler: bool = False, **given: Any) -> np.ndarray:
    import torch
    from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(models / "stable-diffusion")
    if scheduler:
        pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    call = CALL | given
    if (skip := call.pop("clip_skip", None)) is not None:
        call |= _skipping(pipeline, skip, call.pop("prompt"))
    made = pipeline(**call, generator=torch.Generator().manual_seed(1), output_type="np").images
    return np.asarray((made * 255).round().astype(np.uint8))


def _skipping(pipeline: Any, skip: int, prompt: str) -> dict[str, Any]:
    """Encode a prompt without the text encoder's last layers, one layer after the other."""
    import torch

    encoder = pipeline.text_encoder
    ids, empty = (
        pipeline.tokenizer(
            text,
            padding="max_length",
            max_length=pipeline.tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        for text in (prompt, "")
    )
    model = getattr(encoder, "text_model", encoder)
    states: list[Any] = []
    layer = model.encoder.layers[len(model.encoder.layers) - 1 - skip]
    hook = layer.register_forward_hook(
        lambda module, args, out: states.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        encoder(ids)
        hook.remove()
        return {
            "prompt_embeds": model.final_layer_norm(states[0]),
            "negative_prompt_embeds": encoder(empty)[0],
        }


def test_every_input_is_tried(loaded: LoadedPipeline) -> None:
    listed = {p.name for p in loaded.signature.on_wire}
    assert listed == VALUES.keys() | {"ip_adapter_image"}


@pytest.mark.parametrize("name", VALUES)
def test_an_input_means_what_the_pipeline_means(
    models: Path, loaded: LoadedPipeline, name: str
) -> None:
    scheduler = {"scheduler": "EulerDiscreteScheduler"} if name in EULER else {}
    served = load_tiny(models, "stable-diffusion", **scheduler) if scheduler else loaded
    drawn = _served(served, **{name: VALUES[name]})
    expected = _plain(models, name in EULER, **{name: VALUES[name]})
    assert drawn.shape == expected.shape
    assert np.array_equal(drawn, expected)
    usual = _served(served)
    assert drawn.shape != usual.shape or not np.array_equal(drawn, usual)


def test_a_picture_for_an_adapter_that_is_not_there_is_refused(loaded: LoadedPipeline) -> None:
    with pytest.raises(RequestError, match="IP adapter"):
        _served(loaded, ip_adapter_image=np.zeros((1, 32, 32, 3), np.uint8))


KOHYA = {
    "queries and values": ("self_attn.q_proj", "self_attn.v_proj"),
    "attention": tuple(f"self_attn.{n}_proj" for n in ("q", "k", "v", "out")),
    "mlp": ("mlp.fc1", "mlp.fc2"),
    "all": (*(f"self_attn.{n}_proj" for n in ("q", "k", "v", "out")), "mlp.fc1", "mlp.fc2"),
}


@pytest.mark.parametrize("alphas", [(4.0, 4.0), (4.0, 1.0)], ids=str)
@pytest.mark.parametrize("trained", KOHYA)
def test_a_kohya_file_changes_the_text_encoder_as_it_says(
    models: Path, loaded: LoadedPipeline, trained: str, alphas: tuple[float, float], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    encoder = loaded.pipeline.text_encoder
    weights, expected = {}, {}
    generator = torch.Generator().manual_seed(0)
    for i in range(encoder.config.num_hidden_layers):
        for k, part in enumerate(KOHYA[trained]):
            name = f"encoder.layers.{i}.{part}"
            linear = getattr(encoder, "text_model", encoder).get_submodule(name)
            down = torch.randn(4, linear.in_features, generator=generator)
            up = torch.randn(linear.out_features, 4, generator=generator)
            key = "lora_te_text_model_" + name.replace(".", "_")
            weights |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
            weights[f"{key}.alpha"] = torch.tensor(alphas[k % 2])
            expected[name] = linear.weight + up @ down * alphas[k % 2] / 4
    save_file(weights, tmp_path / "te.safetensors")
    config = ServeConfig(
        model=str(models / "stable-diffusion"), lora=str(tmp_path / "te.safetensors")
    )
    changed = load_pipeline(config, models, "cpu")
    assert changed.facts["lora_layers"] == {"lora_0": len(expected)}
    found = getattr(changed.pipeline.text_encoder, "text_model", changed.pipeline.text_encoder)
    for name, weight in expected.items():
        layer = found.get_submodule(name)
        assert torch.allclose(layer.base_layer.weight + layer.get_delta_weight("lora_0"), weight)
    assert not np.array_equal(_served(changed), _served(loaded))
    _served(changed, clip_skip=1)
