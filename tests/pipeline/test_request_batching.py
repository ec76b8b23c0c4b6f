# SPDX-License-Identifier: Apache-2.0
"""Request batching on real tiny pipelines: each caller gets what it would have got alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.loaded import call_inputs, load_tiny
from triton_diffusers.calls.arguments import Call, read_call
from triton_diffusers.errors import CancelledError, ConfigError, OutOfMemoryError
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.running.request_batching import RequestBatcher, _difference
from triton_diffusers.running.run import Computed, compute

JOINED = (
    *("stable-diffusion", "sdxl", "flux", "qwen-image", "z-image", "sana", "lumina2"),
    *("hunyuan-video", "wan22-t2v", "ltx2", "stable-audio", "deepfloyd-if"),
)
"""UNets and transformers; prompts padded, masked or in lists; pictures, videos and sounds."""
REFUSED = {
    "flux-img2img": "the results differ",  # one generator draws the noise of all pictures
    "cogview4": "the results differ",  # pads to the longest prompt, and sees it
    "wan-vace": "Passing a list of prompts is not yet supported",
    "qwen-image-edit-plus": "only supports batch_size=1",
}
PROMPTS = ("a red fox in the snow", "a blue whale", "an old house by the sea at night in winter")
LONG = "antidisestablishmentarianism extraordinarily"
"""Two words of many tokens."""
ORDERS = ((0, 1, 2), (5, 3, 4), (2, 0, 1))


def _ignore(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _call(loaded: LoadedPipeline, name: str, number: int, **more: Any) -> Call:
    """Call `number`: its own prompt and seed."""
    inputs = call_inputs(name)
    call = read_call({"seed": np.array([number]), "prompt": np.array([b"-"], object)}, loaded)
    call.kwargs |= inputs | {"prompt": PROMPTS[number % 3]} | more
    return call


@pytest.mark.parametrize("name", JOINED)
def test_each_gets_what_it_would_get_alone(models: Path, name: str) -> None:
    loaded, told = load_tiny(models, name), []
    batcher = RequestBatcher(loaded, 8, told.append)
    for order in ORDERS:  # the first round verifies, the others join
        calls = [_call(loaded, name, number) for number in order]
        assert all(batcher.joins(calls[0], call) for call in calls[1:])
        found = batcher.run(calls, [_ignore] * 3)
        for call, result in zip(calls, found, strict=True):
            assert isinstance(result, Computed)
            assert _difference(compute(call, loaded, _ignore), result) < 1e-3
    assert told == []
    assert batcher.facts()["calls_by_requests"] == {"1": 3, "3": 2}
    assert 0 <= batcher.largest_difference < 1e-3


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_disagrees_runs_one_by_one(models: Path, name: str) -> None:
    loaded, told = load_tiny(models, name), []
    batcher = RequestBatcher(loaded, 8, told.append)
    for order in ((0, 1), (5, 3)):  # the first round finds out, the second knows
        calls = [_call(loaded, name, number) for number in order]
        for call, result in zip(calls, batcher.run(calls, [_ignore] * 2), strict=True):
            assert isinstance(result, Computed)
            assert _difference(compute(call, loaded, _ignore), result) == 0
    assert REFUSED[name] in told[0]
    assert REFUSED[name] in batcher.facts()["not_joined"][0]
    assert batcher.facts()["calls_by_requests"] == {"1": 4}


def test_texts_of_as_many_words_may_be_of_different_length(models: Path) -> None:
    """CogView4 pads to the longest prompt and sees it: tokens decide, not words."""
    loaded = load_tiny(models, "cogview4")
    batcher = RequestBatcher(loaded, 8)
    for prompts in (("a cat", "a cow"), ("a dog", LONG), ("a pig", LONG)):
        calls = [
            _call(loaded, "cogview4", number, prompt=prompt, negative_prompt="dark")
            for number, prompt in enumerate(prompts)
        ]
        for call, result in zip(calls, batcher.run(calls, [_ignore] * 2), strict=True):
            assert isinstance(result, Computed)
            assert _difference(compute(call, loaded, _ignore), result) < 1e-3


def test_reasons_quote_no_prompt(models: Path) -> None:
    loaded, told = load_tiny(models, "flux"), []
    batcher = RequestBatcher(loaded, 8, told.append)
    encode = loaded.pipeline.encode_prompt

    def failing(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(prompt, list):
            raise ValueError(f"no lists: {prompt}" + " " * 300)
        return encode(prompt, *args, **kwargs)

    loaded.pipeline.encode_prompt = failing
    quoted = ('it\'s a "fox"', "a very long story of " + "a whale and " * 40)
    calls = [_call(loaded, "flux", n, prompt=prompt) for n, prompt in enumerate(quoted)]
    batcher.run(calls, [_ignore] * 2)
    assert told == ["request_batching: such requests run one after the other: ValueError"]


def test_comparing_beats(models: Path) -> None:
    """The engine's watchdog must not take a long comparison for a stuck call."""
    loaded, beats = load_tiny(models, "flux"), []
    batcher = RequestBatcher(loaded, 8)
    calls = [_call(loaded, "flux", number) for number in range(2)]
    batcher.run(calls, [_ignore] * 2, lambda: beats.append(1))
    assert len(beats) == calls[0].kwargs["num_inference_steps"]


def test_only_texts_and_seeds_may_differ(models: Path) -> None:
    loaded = load_tiny(models, "stable-diffusion")
    batcher = RequestBatcher(loaded, 8)
    base = _call(loaded, "stable-diffusion", 0, negative_prompt="blurry")
    for more, joins in (
        ({"negative_prompt": "dark"}, True),
        ({"negative_prompt": None}, False),
        ({"num_inference_steps": 3, "negative_prompt": "dark"}, False),
        ({"guidance_scale": 1.25, "negative_prompt": "dark"}, False),
        ({"prompt": ["one", "two"], "negative_prompt": "dark"}, False),
        ({"eta": 0.0, "negative_prompt": "dark"}, False),
    ):
        other = _call(loaded, "stable-diffusion", 1, **more)
        assert batcher.joins(base, other) is joins, more
    drawn_together = _call(loaded, "stable-diffusion", 1, negative_prompt="dark")
    drawn_together.outputs = 2  # both of one generator
    assert not batcher.joins(base, drawn_together)


def _batch(models: Path) -> tuple[LoadedPipeline, RequestBatcher, list[Call], list[str]]:
    """A batcher that has verified what three calls need."""
    loaded, told = load_tiny(models, "flux"), []
    batcher = RequestBatcher(loaded, 8, told.append)
    calls = [_call(loaded, "flux", number) for number in range(3)]
    batcher.run(calls, [_ignore] * 3)
    return loaded, batcher, calls, told


def test_one_that_leaves_does_not_stop_the_others(models: Path) -> None:
    loaded, batcher, calls, _ = _batch(models)

    def leave(done: int, total: int) -> None:
        raise CancelledError("gone")

    first, second, third = batcher.run(calls, [_ignore, leave, _ignore])
    assert isinstance(second, CancelledError)
    for call, result in ((calls[0], first), (calls[2], third)):
        assert result.batch == 3
        assert _difference(compute(call, loaded, _ignore), result) < 1e-3
    assert all(isinstance(r, CancelledError) for r in batcher.run(calls, [leave] * 3))


class Refusing:
    """Has a denoiser raise for batches larger than `most`, or whenever `when` says so."""

    def __init__(self, module: Any, error: Exception, most: int) -> None:
        self.module, self.error, self.most = module, error, most
        self.original = module.forward

    def __enter__(self) -> None:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs["hidden_states"].shape[0] > self.most:
                raise self.error
            return self.original(*args, **kwargs)

        self.module.forward = forward

    def __exit__(self, *error: object) -> None:
        self.module.forward = self.original


def test_want_of_memory_makes_batches_smaller(models: Path) -> None:
    import torch

    loaded, batcher, calls, told = _batch(models)
    calls.append(_call(loaded, "flux", 3))
    with Refusing(loaded.pipeline.transformer, torch.OutOfMemoryError("CUDA out of memory"), 2):
        found = batcher.run(calls, [_ignore] * 4)
        assert [result.batch for result in found] == [2, 2, 2, 2]
        assert "from now on 2 such requests at once" in told[-1]
    assert [result.batch for result in batcher.run(calls, [_ignore] * 4)] == [2, 2, 2, 2]


def test_a_joined_call_that_fails_runs_one_by_one(models: Path) -> None:
    loaded, batcher, calls, told = _batch(models)
    with Refusing(loaded.pipeline.transformer, RuntimeError("no batches"), 1):
        for _ in range(2):
            assert [result.batch for result in batcher.run(calls, [_ignore] * 3)] == [1, 1, 1]
    assert len(told) == 1
    assert "no batches" in told[0]


def test_the_error_of_one_is_its_own(models: Path) -> None:
    loaded, batcher, calls, told = _batch(models)
    encode = loaded.pipeline.encode_prompt

    def failing(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        if PROMPTS[1] in prompt:
            raise RuntimeError("this prompt fails")
        return encode(prompt, *args, **kwargs)

    loaded.pipeline.encode_prompt = failing
    first, second, third = batcher.run(calls, [_ignore] * 3)
    assert "this prompt fails" in str(second)
    assert isinstance(first, Computed)
    assert isinstance(third, Computed)
    assert told == []  # nothing wrong with joining


def test_out_of_memory_tells_what_was_asked_for_and_frees_it(models: Path) -> None:
    import gc
    import weakref

    import torch

    loaded = load_tiny(models, "flux")
    module, held = loaded.pipeline.transformer, []
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        large = torch.zeros(10)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    module.forward = forward
    call = _call(loaded, "flux", 0, height=64)
    with pytest.raises(OutOfMemoryError, match=r"out of memory on cpu with .*height 64.*20 GiB"):
        compute(call, loaded, _ignore)
    gc.collect()
    assert held[0]() is None
    module.forward = original
    assert isinstance(compute(call, loaded, _ignore), Computed)


def test_what_a_failed_call_held_is_free_at_once(models: Path) -> None:
    import gc
    import weakref

    loaded, held = load_tiny(models, "flux"), []
    module = loaded.pipeline.transformer

    def note(module: Any, arguments: Any, output: Any) -> None:
        held.append(weakref.ref(output[0]))  # the pipeline's own until its next step

    def cancel(done: int, total: int) -> None:
        raise CancelledError("gone")

    hook = module.register_forward_hook(note)
    gc.disable()  # at once, not when Python looks for cycles
    try:
        with pytest.raises(CancelledError):
            compute(_call(loaded, "flux", 0), loaded, cancel)
        assert [reference() for reference in held] == [None]
    finally:
        gc.enable()
        hook.remove()


def test_a_pipeline_without_prompts_is_refused(models: Path) -> None:
    with pytest.raises(ConfigError, match=r"'request_batching' cannot be used with DDPMPipeline"):
        load_tiny(models, "ddpm", request_batching=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request_batching": True, "step_batching": True}, "cannot be used together"),
        ({"gpu_lock": "one", "step_batching": True}, "'gpu_lock' and 'step_batching' cannot be"),
        ({"max_batch": 4}, "'max_batch' has no effect without request_batching or step_batching"),
        ({"request_batching": True, "max_in_flight": 4}, "'max_in_flight' has no effect without"),
    ],
)
def test_settings_without_effect_are_refused(
    models: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_tiny(models, "flux", **options)
