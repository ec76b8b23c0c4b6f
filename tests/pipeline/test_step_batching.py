# SPDX-License-Identifier: Apache-2.0
"""Step batching on real tiny pipelines: calls side by side give what each gives alone."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.pipeline.loaded import call_inputs, load_tiny
from tests.tiny import TINY
from triton_diffusers.calls.arguments import read_call
from triton_diffusers.errors import CancelledError, ConfigError
from triton_diffusers.pipelines.denoisers import text_encoders
from triton_diffusers.pipelines.isolation import isolate, why_not_beside
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.notices import collected
from triton_diffusers.running.run import run_call
from triton_diffusers.running.step_batching import Lane, StepBatcher

CALLS = 4
FEWER = {"qwen-image-edit-plus": 2, "hunyuan-video-15": 2}
"""Kinds whose calls take seconds."""
KINDS = (
    *("stable-diffusion", "sdxl", "flux", "flux2-klein", "qwen-image", "chroma", "lumina2"),
    *("sana", "pixart-sigma", "cogview4", "hunyuan-video", "wan22-t2v", "ddpm"),
    "hunyuan-video-15",  # its guider holds the state of a call, as schedulers do
    *("stable-audio", "stable-diffusion-controlnet", "qwen-image-edit-plus", "z-image"),
)
"""UNets and transformers, guidance by one forward or two, lists of samples, two denoisers."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


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
    loaded: LoadedPipeline, inputs: dict[str, Any], batcher: StepBatcher, calls: int = CALLS
) -> list[Any]:
    results: list[Any] = [None] * calls

    def start(number: int) -> None:
        batcher.start(
            lambda lane: _run(loaded, inputs, number, lane),
            lambda result: results.__setitem__(number, result),
        )

    for number in range(calls):
        start(number)
    finish(batcher)
    return results


def finish(batcher: StepBatcher) -> None:
    """Advance until every lane has ended."""
    while batcher.lanes:
        batcher.advance()


@pytest.fixture
def batcher() -> StepBatcher:
    return StepBatcher(limit=16)


@pytest.mark.parametrize("name", KINDS)
def test_each_gets_what_it_would_get_alone(models: Path, name: str, batcher: StepBatcher) -> None:
    inputs, loaded = call_inputs(name), load_tiny(models, name)
    alone = [_run(loaded, inputs, n) for n in range(FEWER.get(name, CALLS))]
    for _ in range(2):  # the first round verifies the shapes, the second joins them
        results = _side_by_side(loaded, inputs, batcher, len(alone))
        for wanted, found in zip(alone, results, strict=True):
            if isinstance(found, Exception):
                raise found
            limit = 1 if wanted.max() > 2 else 1e-2  # of 255, or of floats
            assert np.abs(wanted - found).max() <= limit
    shared = sum(count for joined, count in batcher.forwards.items() if joined > 1)
    assert shared > 0, batcher.refused


def test_a_cancelled_call_leaves_the_others_alone(models: Path, batcher: StepBatcher) -> None:
    loaded = load_tiny(models, "flux")
    inputs = TINY["flux"].inputs()
    alone = _run(loaded, inputs, 0)
    results: list[Any] = []
    for stop in (True, False, True, False):
        work = functools.partial(_run, loaded, inputs, 0, stop=stop)
        batcher.start(lambda lane, work=work: work(lane=lane), results.append)
    finish(batcher)
    assert sum(isinstance(result, CancelledError) for result in results) == 2
    pictures = [result for result in results if not isinstance(result, Exception)]
    assert len(pictures) == 2
    assert all(np.abs(picture - alone).max() <= 1 for picture in pictures)


def test_a_failing_denoiser_fails_its_call_alone(models: Path, batcher: StepBatcher) -> None:
    loaded = load_tiny(models, "flux")
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
    loaded = load_tiny(models, "flux")
    inputs = TINY["flux"].inputs()
    module = loaded.pipeline.transformer
    original = module.forward

    batches: list[int] = []

    def mixing(*args: Any, **kwargs: Any) -> Any:
        batches.append(len(kwargs["hidden_states"]))
        (output,) = original(*args, **kwargs | {"return_dict": False})
        return (output + output.mean(dim=0, keepdim=True) * 0.1,)

    module.forward = mixing
    try:
        alone = [_run(loaded, inputs, n) for n in range(CALLS)]
        for _ in range(2):
            batches.clear()
            for wanted, found in zip(alone, _side_by_side(loaded, inputs, batcher), strict=True):
                assert np.abs(wanted - found).max() <= 1
    finally:
        module.forward = original
    assert set(batches) == {1}
    assert "the results differ" in batcher.refused[0]


def test_timesteps_that_come_to_differ_are_verified_too(models: Path, batcher: StepBatcher) -> None:
    """One timestep for all samples and one for each are two calls to a model."""
    loaded = load_tiny(models, "ddpm")
    unet = loaded.pipeline.unet
    original = unet.forward

    def reads_the_first(sample: Any, timestep: Any, **others: Any) -> Any:
        return original(sample, timestep.reshape(-1)[:1].expand(len(sample)), **others)

    def run(steps: tuple[int, int]) -> None:
        inputs = [{"num_inference_steps": count - n} for n, count in enumerate(steps)]
        alone = [_run(loaded, each, n) for n, each in enumerate(inputs)]
        found: list[Any] = [None, None]
        for n, each in enumerate(inputs):
            work = functools.partial(_run, loaded, each, n)
            done = functools.partial(found.__setitem__, n)
            batcher.start(lambda lane, work=work: work(lane=lane), done)
        finish(batcher)
        assert max(np.abs(a - f).max() for a, f in zip(alone, found, strict=True)) <= 1

    unet.forward = reads_the_first
    try:
        run((4, 4))
        run((4, 4))
        assert batcher.forwards[2] > 4
        run((4, 5))
        assert "the results differ" in batcher.refused[0]
        joined = batcher.forwards[2]
        run((4, 4))
        assert batcher.forwards[2] == joined + 4
    finally:
        unet.forward = original


class Scaled:
    """A module that handles a vector `t` as it should, and one `g` as if it were for all."""

    dtype = "torch.float32"

    def __call__(self, x: Any, t: Any, g: Any) -> Any:
        return x * t.reshape(-1, 1) + g.reshape(-1)[0]


def _pair(batcher: StepBatcher, module: Any, *arguments: tuple[float, ...]) -> list[Any]:
    """Call the module side by side; return each one's result less the one that it has alone."""
    found: list[Any] = []
    for numbers in arguments:
        x = torch.ones(2, 4)
        sent = (x, *(torch.tensor(n) for n in numbers))

        def work(lane: Lane, sent: Any = sent) -> Any:
            with torch.no_grad():
                return lane.call(module, sent, {}) - module(*sent)

        batcher.start(work, found.append)
    finish(batcher)
    return [float(off.abs().max()) for off in found]


def test_each_value_that_comes_to_differ_is_verified(batcher: StepBatcher) -> None:
    module = Scaled()
    for _ in range(2):
        assert _pair(batcher, module, (1.0, 5.0), (2.0, 5.0)) == [0, 0]
    assert batcher.forwards[2] == 1
    for _ in range(2):
        assert _pair(batcher, module, (1.0, 5.0), (1.0, 50.0)) == [0, 0]
        assert _pair(batcher, module, (1.0, 5.0), (2.0, 50.0)) == [0, 0]
    assert "the results differ" in batcher.refused[0]
    _pair(batcher, module, (1.0, 5.0), (2.0, 5.0))
    assert batcher.forwards[2] == 2


def test_calls_that_cannot_be_joined_leave_those_that_can(batcher: StepBatcher) -> None:
    """Portrait and landscape of one size have the same shapes, and other places of pixels."""

    def module(x: Any, places: Any) -> Any:
        return x * places.sum()

    module.dtype = "torch.float32"

    def pair(*places: float) -> None:
        found: list[Any] = []
        for place in places:
            sent = (torch.ones(2, 4), torch.full((3, 4), place))
            batcher.start(lambda lane, sent=sent: _call(lane, module, sent), found.append)
        finish(batcher)
        assert [float(f[0, 0]) for f in found] == [12 * place for place in places]

    pair(1, 1)
    pair(1, 1)
    assert batcher.forwards[2] == 1
    pair(1, 2)
    pair(1, 2)
    assert [text.partition(": ")[2] for text in batcher.refused] == [
        "2 calls are not joined: a tensor without batch differs"
    ]
    pair(1, 1)
    assert batcher.forwards[2] == 2


def _call(lane: Lane, module: Any, sent: Any) -> Any:
    with torch.no_grad():
        return lane.call(module, sent, {})


def test_draws_from_the_global_generator_stay_a_calls_own(models: Path) -> None:
    import torch

    batcher = StepBatcher(limit=4)
    module = torch.nn.Linear(2, 2)
    drawn: dict[int, list[float]] = {}

    def work(seed: int, lane: Lane) -> None:
        torch.manual_seed(seed)
        drawn[seed] = []
        for _ in range(5):
            drawn[seed].append(float(torch.rand(1)))
            with torch.no_grad():
                lane.call(module, (torch.zeros(1, 2),), {})

    for seed in range(3):
        batcher.start(functools.partial(work, seed), lambda result: None)
    finish(batcher)
    assert batcher.forwards[3] == 4  # the first one was verified
    for seed in range(3):
        torch.manual_seed(seed)
        assert drawn[seed] == [float(torch.rand(1)) for _ in range(5)]


def test_what_has_no_tensor_in_front_runs_alone(batcher: StepBatcher) -> None:
    class Nested(torch.nn.Module):
        def forward(self, samples: dict[str, Any]) -> Any:
            return samples["x"] * 2

    def work(lane: Lane) -> Any:
        with torch.no_grad():
            return lane.call(Nested(), (), {"samples": {"x": torch.ones(2)}})

    found: list[Any] = []
    batcher.start(work, found.append)
    finish(batcher)
    assert torch.equal(found[0], torch.full((2,), 2.0))


def test_a_lane_joins_while_others_run(models: Path, batcher: StepBatcher) -> None:
    loaded, inputs = load_tiny(models, "flux"), TINY["flux"].inputs() | {"num_inference_steps": 4}
    alone = [_run(loaded, inputs, n) for n in range(3)]
    for _ in range(2):  # the first round verifies
        results: dict[int, Any] = {}
        for number in range(3):
            batcher.start(
                lambda lane, n=number: _run(loaded, inputs, n, lane),
                functools.partial(results.__setitem__, number),
            )
            batcher.advance()  # the others have made a step more
        finish(batcher)
    assert all(np.abs(results[n] - alone[n]).max() <= 1 for n in range(3))
    assert batcher.forwards[3] > 0


def test_gradients_and_casts_stay_a_lanes_own(batcher: StepBatcher) -> None:
    """Pipelines that guide by gradients call their denoiser for them; others run it cast."""
    import torch

    module = torch.nn.Linear(2, 2)
    seen: dict[str, Any] = {}

    def guided(lane: Lane) -> None:
        with torch.no_grad():
            lane.call(module, (torch.zeros(1, 2),), {})
        seen["between"] = torch.is_grad_enabled()
        seen["guided"] = lane.call(module, (torch.zeros(1, 2),), {}).requires_grad

    def cast(lane: Lane) -> None:
        with torch.no_grad():
            lane.call(module, (torch.zeros(1, 2),), {})
            with torch.autocast("cpu", torch.bfloat16):
                seen["cast"] = lane.call(module, (torch.zeros(1, 2),), {}).dtype
            lane.call(module, (torch.zeros(1, 2),), {})
            seen["after"] = torch.is_grad_enabled()

    failures: list[Any] = []
    for work in (guided, cast, guided):
        batcher.start(work, failures.append)
    finish(batcher)
    assert failures == [None] * 3
    expected = {"between": True, "guided": True, "cast": torch.bfloat16, "after": False}
    assert seen == expected
    assert torch.is_grad_enabled()


def test_warnings_stay_a_lanes_own(batcher: StepBatcher) -> None:
    import logging

    import torch

    module, notes = torch.nn.Linear(2, 2), {number: [] for number in range(3)}

    def work(number: int, lane: Lane) -> None:
        with collected(notes[number]), torch.no_grad():
            for step in range(3):
                logging.getLogger("diffusers").warning("lane %s step %s", number, step)
                lane.call(module, (torch.zeros(1, 2),), {})

    for number in range(3):
        batcher.start(functools.partial(work, number), lambda result: None)
    finish(batcher)
    for number in range(3):
        assert notes[number] == [f"lane {number} step {step}" for step in range(3)]


@pytest.mark.parametrize("name", ["stable-diffusion-pag", "stable-diffusion-gligen"])
def test_a_call_that_changes_the_denoiser_is_refused(models: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"'step_batching' cannot be used .*attention layers"):
        load_tiny(models, name, step_batching=True)


def test_what_a_pipeline_of_ones_own_inherits_counts(models: Path) -> None:
    from diffusers import StableDiffusionPAGPipeline

    class Own(StableDiffusionPAGPipeline):
        pass

    pipeline = load_tiny(models, "stable-diffusion-pag").pipeline
    pipeline.__class__ = Own
    assert "attention layers" in str(why_not_beside(pipeline))
    # without a file nothing can be told of what a call does
    unreadable: dict[str, Any] = {}
    exec("def __call__(self): pass", unreadable)
    pipeline.__class__ = type("Made", (Own,), {"__call__": unreadable["__call__"]})
    assert "cannot be read" in str(why_not_beside(pipeline))


def test_a_vae_that_is_cast_to_decode_is_not_shared(models: Path, batcher: StepBatcher) -> None:
    """SDXL in float16 casts the vae that all lanes have, decodes, and casts it back."""
    loaded = load_tiny(models, "sdxl", dtype="float16")
    inputs = call_inputs("sdxl")
    loaded.pipeline.vae.register_to_config(force_upcast=True)
    decoder, types = loaded.pipeline.vae.decoder, []
    decoder.register_forward_pre_hook(lambda module, arguments: types.append(arguments[0].dtype))
    results: list[Any] = []
    for _ in range(CALLS):  # of as many steps: they come to their decodes together
        batcher.start(lambda lane: _run(loaded, inputs, 0, lane), results.append)
    finish(batcher)
    assert all(isinstance(result, np.ndarray) for result in results), results
    assert len(types) == CALLS
    assert {str(dtype) for dtype in types} == {"torch.float32"}


def test_text_encoders_with_adapters_are_not_shared(models: Path) -> None:
    loaded = load_tiny(models, "stable-diffusion")
    assert set(text_encoders(loaded.pipeline)) == {"text_encoder"}
    loaded.pipeline.text_encoder.peft_config = {"adapter": object()}
    assert text_encoders(loaded.pipeline) == {}


def test_a_joined_forward_that_fails_is_not_tried_again(models: Path, batcher: StepBatcher) -> None:
    loaded, inputs = load_tiny(models, "flux"), TINY["flux"].inputs()
    _side_by_side(loaded, inputs, batcher)  # verified
    module, tried = loaded.pipeline.transformer, []
    original = module.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs["hidden_states"]) > 1:
            tried.append(1)
            raise RuntimeError("too large")
        return original(*args, **kwargs)

    module.forward = failing
    try:
        for _ in range(3):
            results = _side_by_side(loaded, inputs, batcher)
            assert all(isinstance(result, np.ndarray) for result in results)
    finally:
        module.forward = original
    assert len(tried) == len(batcher.refused)
    assert "too large" in batcher.refused[0]


def test_what_holds_the_state_of_a_call_is_each_calls_own(models: Path) -> None:
    pipeline = load_tiny(models, "hunyuan-video-15").pipeline
    clone = isolate(pipeline, lambda done, total: None)
    assert clone.transformer is pipeline.transformer
    for name in ("scheduler", "guider"):
        assert getattr(clone, name) is not getattr(pipeline, name)
