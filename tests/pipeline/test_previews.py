# SPDX-License-Identifier: Apache-2.0
"""Previews of real tiny pipelines: no call changes, latents of every layout are found.

Weights are random here, and what a random decoder paints is hardly linear: how good previews are is
tested with the demo model (tests/server/test_previews.py). Here every map is used, however bad.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import TINY, save
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.isolation import isolate
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.previews import previews
from triton_diffusers.previews.latents import Latents, SchedulerStep
from triton_diffusers.previews.previews import CallPreviews, Previews
from triton_diffusers.running.request_batching import RequestBatcher
from triton_diffusers.running.run import Computed, compute, run_call

LAYOUTS = {
    "stable-diffusion": "bchw",
    "sdxl": "bchw",
    "ddpm": "bchw",
    "z-image": "bchw",
    "sana": "bchw",
    "latent-consistency": "bchw",
    "flux": "bsc",
    "qwen-image": "bsc",
    "flux2-klein": "bsc",
    "ltx": "bsc",
    "ltx2": "bsc",
    "wan-t2v": "bcfhw",
    "wan22-t2v": "bcfhw",
    "hunyuan-video": "bcfhw",
    "cogvideox": "bfchw",
    "animatediff": "bcfhw",
}
PICTURES = ("images", "frames")
LARGER = {"ltx2": {"height": 64, "width": 96}}
"""Of its usual size a frame has but one place."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _load(models: Path, name: str, streams: bool = True) -> LoadedPipeline:
    path = models / name if (models / name).exists() else save(name, models)
    return load_pipeline(ServeConfig(model=str(path)), models, "cpu", streams=streams)


def _run(
    loaded: LoadedPipeline, inputs: dict[str, Any], every: int | None = None, seed: int = 3
) -> tuple[Computed, list[Any]]:
    """Run a call; return what it gave and its previews."""
    seen: list[Any] = []

    def on_step(done: int, total: int, pictures: Any = None) -> None:
        if pictures is not None:
            seen.append(pictures())

    sent = {"seed": np.array([seed])} | ({"preview_every": np.array([every])} if every else {})
    call = read_call(sent, loaded)
    call.kwargs |= inputs
    return compute(call, loaded, on_step), seen


def _pictures_of(computed: Computed) -> np.ndarray:
    name = next(name for name in PICTURES if name in computed.fields)
    return np.stack(previews.read_pictures(computed.fields[name]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_latents_are_found_and_nothing_changes(
    models: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "MIN_SCORE", -np.inf)
    inputs = TINY[name].inputs() | LARGER.get(name, {})
    wanted = _pictures_of(_run(_load(models, name, streams=False), inputs)[0])
    loaded = _load(models, name)
    first, none = _run(loaded, inputs, every=1)
    assert first.no_previews.startswith("no previews: their colours are learned")
    assert all(seen is None for seen in none)
    second, seen = _run(loaded, inputs, every=1)
    for found in (first, second):
        np.testing.assert_array_equal(_pictures_of(found), wanted)
    assert second.no_previews == ""
    assert len(seen) == second.steps > 0
    assert loaded.previews is not None
    assert LAYOUTS[name] in {axes for _, axes, _ in loaded.previews._known}
    height, width = wanted.shape[-3:-1]
    for pictures in seen:
        assert pictures.dtype == np.uint8
        assert pictures.shape[0] == len(wanted)
        assert pictures.shape[3] == 3
        if name == "ltx2":
            continue  # with any map allowed its sound may win
        assert abs(pictures.shape[1] / pictures.shape[2] - height / width) < 0.1


def _step(scheduler: Any, **options: Any) -> tuple[SchedulerStep, Any, Any]:
    """Take the second step of a watched scheduler and of an unwatched one alike."""
    import torch

    sample = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    outputs = []
    latents = Latents()
    for watched in (True, False):
        made = copy.deepcopy(scheduler)
        if watched:
            made.__class__ = latents._watched(type(made))
        made.set_timesteps(6)
        current = sample
        for timestep in made.timesteps[:2]:
            torch.manual_seed(0)
            output = made.step(noise, timestep, current, **options)
            current = output[0]
        outputs.append(output)
    return latents.steps()[0], *outputs


SCHEDULERS = (
    *("DDIMScheduler", "DDPMScheduler", "EulerDiscreteScheduler", "LMSDiscreteScheduler"),
    *("EulerAncestralDiscreteScheduler", "PNDMScheduler", "LCMScheduler", "TCDScheduler"),
    *("DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "UniPCMultistepScheduler"),
    *("DEISMultistepScheduler", "HeunDiscreteScheduler", "KDPM2DiscreteScheduler"),
    *("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "SASolverScheduler"),
)
KNOW_NOTHING_BETTER = {
    *("PNDMScheduler", "TCDScheduler", "DEISMultistepScheduler", "SASolverScheduler")
}


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_watched_scheduler_does_the_same(name: str, as_object: bool) -> None:
    import diffusers
    import torch

    scheduler = getattr(diffusers, name)()
    step, watched, plain = _step(scheduler, return_dict=as_object)
    assert type(watched) is type(plain)
    assert torch.equal(watched[0], plain[0])
    assert torch.equal(step.latents, plain[0])
    assert step.clean.shape == plain[0].shape
    assert torch.equal(step.clean, step.latents) == (name in KNOW_NOTHING_BETTER)
    for field in ("pred_original_sample", "denoised"):
        if hasattr(plain, field):
            assert torch.equal(step.clean, getattr(plain, field))


def test_flow_matching_tells_the_end_of_its_straight_line() -> None:
    import diffusers
    import torch

    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.__class__ = (latents := Latents())._watched(type(scheduler))
    scheduler.set_timesteps(5)
    end, noise = torch.full((1, 4, 8, 8), 0.3), torch.randn(1, 4, 8, 8)
    current = noise
    for timestep in scheduler.timesteps:
        current = scheduler.step(noise - end, timestep, current).prev_sample
        assert torch.allclose(latents.steps()[0].clean, end, atol=1e-5)


def test_copies_of_a_watched_scheduler_work_on_themselves() -> None:
    import diffusers
    import torch

    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.__class__ = (latents := Latents())._watched(type(scheduler))
    scheduler.set_timesteps(4)
    other = copy.deepcopy(scheduler)
    for made in (scheduler, other):
        made.step(torch.ones(1, 4, 8, 8), made.timesteps[0], torch.zeros(1, 4, 8, 8))
        assert made.step_index == 1
    assert isinstance(other, diffusers.FlowMatchEulerDiscreteScheduler)
    assert type(other).__name__ == "FlowMatchEulerDiscreteScheduler"
    assert [step.scheduler for step in latents.steps()] == [other, scheduler]


def test_a_bad_fit_is_told_and_gives_no_preview(models: Path) -> None:
    loaded = _load(models, "stable-diffusion")
    inputs = TINY["stable-diffusion"].inputs()
    _run(loaded, inputs)
    call = read_call({"seed": np.array([3]), "preview_every": np.array([1])}, loaded)
    call.kwargs |= inputs
    seen: list[Any] = []
    wire = run_call(call, loaded, lambda done, total, pictures: seen.append(pictures()))
    assert seen == [None] * 2
    assert b"no previews: a linear map explains only" in wire["info"][0]


def test_learning_stops_and_costs_nothing_then(models: Path) -> None:
    loaded = _load(models, "ddpm")
    inputs = TINY["ddpm"].inputs()
    for seed in range(previews.LESSONS):
        assert loaded.previews is not None
        assert loaded.previews.is_learning
        _run(loaded, inputs, seed=seed)
    assert not loaded.previews.is_learning
    call = CallPreviews(loaded.previews, {}, wanted=False)
    scheduler = loaded.pipeline.scheduler
    with call.watching(loaded.pipeline):
        pass
    assert type(scheduler).step.__qualname__ == "DDPMScheduler.step"
    assert "_watched" not in repr(type(scheduler).__dict__.get("step"))


def test_previews_of_a_pipeline_of_pixels_are_its_pictures(models: Path) -> None:
    loaded = _load(models, "ddpm")
    inputs = TINY["ddpm"].inputs()
    _run(loaded, inputs)
    computed, seen = _run(loaded, inputs, every=1, seed=5)
    wanted = _pictures_of(computed)
    assert np.abs(seen[-1].astype(int) - wanted.astype(int)).mean() < 4


def test_warm_up_calls_teach(models: Path) -> None:
    path = models / "ddpm" if (models / "ddpm").exists() else save("ddpm", models)
    config = ServeConfig(model=str(path), warmup="default")
    loaded = load_pipeline(config, models, "cpu", streams=True)
    assert _run(loaded, TINY["ddpm"].inputs(), every=1)[0].no_previews == ""


def test_an_error_of_ours_fails_no_call_and_is_logged_once(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    loaded = _load(models, "ddpm")
    loaded.__dict__["previews"] = Previews(False, said.append)
    inputs = TINY["ddpm"].inputs()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(previews, "readings", broken)
    for _ in range(3):
        computed, seen = _run(loaded, inputs, every=1)
        assert len(_pictures_of(computed)) == 2
        assert seen.count(None) == len(seen)
    assert len(said) == 1
    assert "ZeroDivisionError: ours" in said[0]
    assert computed.no_previews == "no previews: ZeroDivisionError: ours (in the server's log)"


def test_callers_of_one_joined_call_get_their_own_previews(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "MIN_SCORE", -np.inf)
    loaded = _load(models, "stable-diffusion")
    inputs = {n: v for n, v in TINY["stable-diffusion"].inputs().items() if n != "negative_prompt"}
    batcher = RequestBatcher(loaded, 3)

    def run(wanting: tuple[bool, ...]) -> list[list[Any]]:
        calls, seen = [], [[] for _ in wanting]
        for seed, wants in enumerate(wanting):
            sent = {"preview_every": np.array([1])} if wants else {}
            calls.append(read_call(sent | {"seed": np.array([seed])}, loaded))
            calls[-1].kwargs |= inputs
            calls[-1].outputs = 1

        def told(number: int) -> Any:
            return lambda done, total, pictures=None: seen[number].append(pictures and pictures())

        for outcome in batcher.run(calls, [told(number) for number in range(len(wanting))]):
            assert isinstance(outcome, Computed)
        return seen

    run((False, False, False))  # verified
    joined = run((False, True, True))
    assert batcher.calls[3] == 1
    alone = run((True,))  # the seed of the first, which was not asked for
    assert set(map(type, joined[0])) == {type(None)}
    for previewed in (*joined[1:], *alone):
        assert [pictures.shape for pictures in previewed] == [previewed[0].shape] * 2
        assert len(previewed[0]) == 1
    assert not np.array_equal(joined[1][-1], joined[2][-1])


def test_a_call_that_fails_lets_its_latents_go(models: Path) -> None:
    loaded = _load(models, "ddpm")
    call = CallPreviews(loaded.previews, {}, wanted=True)
    pipeline = isolate(loaded.pipeline, lambda done, total: None)

    def fail() -> None:
        with call.watching(pipeline):
            pipeline(num_inference_steps=1)
            assert call._latents.steps()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert call._latents.steps() == []
