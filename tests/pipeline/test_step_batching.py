# SPDX-License-Identifier: Apache-2.0
"""Step batching on real tiny pipelines: calls side by side give what each gives alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import TINY, save
from triton_diffusers import step_batching
from triton_diffusers.call import read_call
from triton_diffusers.config import ServeConfig
from triton_diffusers.errors import CancelledError, ConfigError
from triton_diffusers.loading import LoadedPipeline, load_pipeline
from triton_diffusers.runner import run_call
from triton_diffusers.step_batching import StepBatcher

CALLS = 4
KINDS = (
    *("stable-diffusion", "sdxl", "flux", "flux2-klein", "qwen-image", "chroma", "lumina2"),
    *("sana", "pixart-sigma", "cogview4", "hunyuan-video", "wan22-t2v", "ddpm"),
    *("stable-audio", "stable-diffusion-controlnet", "qwen-image-edit-plus", "z-image"),
)
"""UNets and transformers, guidance by one forward or two, lists of samples, two denoisers."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _load(models: Path, name: str) -> LoadedPipeline:
    path = models / name if (models / name).exists() else save(name, models)
    return load_pipeline(ServeConfig(model=str(path)), models, "cpu")


def _run(
    loaded: LoadedPipeline,
    inputs: dict[str, Any],
    number: int,
    lane: Any = None,
    stop: bool = False,
) -> np.ndarray:
    """Run call `number`: its own seed and, so that arrivals drift apart, its own steps."""

    def on_step(done: int, total: int) -> None:
        if stop:
            raise CancelledError("the request was cancelled")

    call = read_call({"seed": np.array([number])}, loaded)
    call.kwargs |= inputs
    if "num_inference_steps" in inputs:
        call.kwargs["num_inference_steps"] += number
    wire = run_call(call, loaded, on_step, lane)
    names = ("images", "frames", "audios")
    return next(wire[name] for name in names if name in wire).astype(np.float64)


def _side_by_side(
    loaded: LoadedPipeline, inputs: dict[str, Any], batcher: StepBatcher
) -> list[Any]:
    results: list[Any] = [None] * CALLS

    def work(number: int) -> None:
        try:
            with batcher.lane() as lane:
                results[number] = _run(loaded, inputs, number, lane)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return results


@pytest.fixture
def batcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A batcher that waits for every lane on its way, so that machine and load decide nothing."""
    monkeypatch.setattr(step_batching, "PATIENCE", 1e6)
    monkeypatch.setattr(step_batching, "LONGEST_WAIT_S", 5.0)
    made = StepBatcher(limit=16)
    yield made
    made.close()


@pytest.mark.parametrize("name", KINDS)
def test_each_gets_what_it_would_get_alone(models: Path, name: str, batcher: StepBatcher) -> None:
    inputs = TINY[name].inputs()
    if name == "stable-audio":
        inputs = {n: v for n, v in inputs.items() if not isinstance(v, np.ndarray)}
    loaded = _load(models, name)
    alone = [_run(loaded, inputs, n) for n in range(CALLS)]
    for _ in range(2):  # the first round verifies the shapes, the second joins them
        for wanted, found in zip(alone, _side_by_side(loaded, inputs, batcher), strict=True):
            if isinstance(found, Exception):
                raise found
            limit = 1 if wanted.max() > 2 else 1e-2  # of 255, or of floats
            assert np.abs(wanted - found).max() <= limit
    shared = sum(count for joined, count in batcher.forwards.items() if joined > 1)
    assert shared > 0, batcher.refused


def test_a_cancelled_call_leaves_the_others_alone(models: Path, batcher: StepBatcher) -> None:
    loaded = _load(models, "flux")
    inputs = TINY["flux"].inputs()
    alone = _run(loaded, inputs, 0)
    results: list[Any] = []

    def work(stop: bool) -> None:
        try:
            with batcher.lane() as lane:
                results.append(_run(loaded, inputs, 0, lane, stop=stop))
        except CancelledError as error:
            results.append(error)

    threads = [threading.Thread(target=work, args=(stop,)) for stop in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pictures = [result for result in results if not isinstance(result, Exception)]
    assert len(pictures) == 2
    assert all(np.abs(picture - alone).max() <= 1 for picture in pictures)


def test_a_failing_denoiser_fails_its_call_alone(models: Path, batcher: StepBatcher) -> None:
    loaded = _load(models, "flux")
    inputs = TINY["flux"].inputs()
    module = loaded.pipeline.transformer
    alone = _run(loaded, inputs, 1)
    original = module.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        if kwargs["timestep"].shape[0] > 1:
            raise RuntimeError("out of memory")
        return original(*args, **kwargs)

    module.forward = failing
    try:
        results = _side_by_side(loaded, inputs, batcher)
    finally:
        module.forward = original
    assert np.abs(results[1] - alone).max() <= 1
    assert "out of memory" in batcher.refused[0]


def test_a_shape_that_disagrees_is_not_joined(models: Path, batcher: StepBatcher) -> None:
    """A model whose samples see each other: joined forwards would be wrong."""
    loaded = _load(models, "flux")
    inputs = TINY["flux"].inputs()
    module = loaded.pipeline.transformer
    original = module.forward

    def mixing(*args: Any, **kwargs: Any) -> Any:
        (output,) = original(*args, **kwargs | {"return_dict": False})
        return (output + output.mean(dim=0, keepdim=True) * 0.1,)

    module.forward = mixing
    try:
        alone = [_run(loaded, inputs, n) for n in range(CALLS)]
        for _ in range(2):
            results = _side_by_side(loaded, inputs, batcher)
            assert all(np.array_equal(a, r) for a, r in zip(alone, results, strict=True))
    finally:
        module.forward = original
    assert "the results differ" in batcher.refused[0]
    assert not any(joined > 1 for joined in batcher.forwards)


def test_draws_from_the_global_generator_stay_a_calls_own(models: Path) -> None:
    import torch

    batcher = StepBatcher(limit=4)
    module = torch.nn.Linear(2, 2)
    drawn: dict[int, list[float]] = {}

    def work(seed: int) -> None:
        with batcher.lane() as lane:
            torch.manual_seed(seed)
            drawn[seed] = []
            for _ in range(5):
                drawn[seed].append(float(torch.rand(1)))
                lane.call(module, (torch.zeros(1, 2),), {})

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    batcher.close()
    for seed in range(3):
        torch.manual_seed(seed)
        assert drawn[seed] == [float(torch.rand(1)) for _ in range(5)]


def test_what_has_no_tensor_in_front_runs_alone(batcher: StepBatcher) -> None:
    import torch

    class Nested(torch.nn.Module):
        def forward(self, samples: dict[str, Any]) -> Any:
            return samples["x"] * 2

    with batcher.lane() as lane:
        found = lane.call(Nested(), (), {"samples": {"x": torch.ones(2)}})
    assert torch.equal(found, torch.full((2,), 2.0))


def test_a_call_that_changes_the_denoiser_is_refused(models: Path) -> None:
    path = save("stable-diffusion-pag", models)
    with pytest.raises(ConfigError, match=r"'step_batching' cannot be used .*attention layers"):
        load_pipeline(ServeConfig(model=str(path), step_batching=True), models, "cpu")
