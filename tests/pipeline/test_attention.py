# SPDX-License-Identifier: Apache-2.0
"""Attention backends on real tiny pipelines: what runs, what is refused, what is left alone."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

from tests.pipeline.loaded import draw, read_digits
from tests.tiny import TINY, save
from triton_diffusers.attention.backends import BACKENDS, NATIVE, chain
from triton_diffusers.attention.choice import ENVIRONMENT, WITHOUT_MASK, choose_attention
from triton_diffusers.attention.recorded import capture_inputs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.load import load_pipeline
from triton_diffusers.pipelines.denoisers import NAMES, denoisers
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import read_signature

RUNS_HERE = ("_native_math", "_native_flash", "flex")
"""Of the backends that this CPU could have; `_native_flash` takes no mask."""
DEMO = Path(__file__).parent.parent.parent / "model_repository" / "demo" / "pipeline"
NEEDED: dict[str, dict[str, Any]] = {
    "aura-flow": {"max_sequence_length": 48},
    "cogvideox": {"max_sequence_length": 32},
    "cogvideox-i2v": {"max_sequence_length": 32},
    "cogvideox-v2v": {"max_sequence_length": 32},
    "cogview4": {"negative_prompt": "blurry"},
    "flux2-klein": {"max_sequence_length": 48, "text_encoder_out_layers": [1, 2]},
    "latte": {"video_length": 4},
    "pixart-sigma": {"max_sequence_length": 48},
    "sana-image-to-video": {"max_sequence_length": 32},
    "sana-video": {"max_sequence_length": 32},
    "stable-diffusion-gligen": {
        "gligen_phrases": ["a fox"],
        "gligen_boxes": [[0.1, 0.1, 0.6, 0.6]],
    },
}
"""What no call of these can do without: their texts or clips are shorter than the defaults."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("flux", "qwen-image", "qwen-image-controlnet", "wan22-t2v", "stable-diffusion"):
        save(name, folder)
    return folder


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """What diffusers keeps for the process is as it was, but that masked calls go to native."""
    active, before = Registry.get_active_backend(), dict(Registry._backends)
    yield
    own = {name: getattr(found, "own", found) for name, found in Registry._backends.items()}
    Registry._backends.update(before)
    assert (Registry.get_active_backend(), own) == (active, before)


def _load(models: Path, model: str, backend: str, **options: Any) -> LoadedPipeline:
    return load_pipeline(
        ServeConfig(model=model, attention_backend=backend, **options), models, "cpu"
    )


def _texts(prompts: list[str]) -> np.ndarray:
    return np.array([text.encode() for text in prompts], np.object_)


def _used(loaded: LoadedPipeline) -> dict[str, set[str]]:
    """The backends that the processors of each denoiser hold."""
    return {
        name: {
            AttentionBackendName(p._attention_backend or "native").value
            for p in module.attn_processors.values()
            if hasattr(p, "_attention_backend")
        }
        for name, module in denoisers(loaded.pipeline).items()
    }


def _break(monkeypatch: pytest.MonkeyPatch, backend: str, function: Any) -> None:
    monkeypatch.setitem(Registry._backends, AttentionBackendName(backend), function)


def test_the_table_has_every_backend_of_diffusers() -> None:
    assert set(BACKENDS) == {name.value for name in AttentionBackendName}


def test_every_denoiser_of_every_pipeline_has_a_known_name() -> None:
    """By the classes that diffusers keeps its denoisers in."""
    import diffusers

    places = tuple(f"diffusers.models.{p}." for p in ("transformers", "unets", "controlnets"))
    found = {}
    for name in dir(diffusers):
        cls = getattr(diffusers, name, None)
        if not (isinstance(cls, type) and issubclass(cls, DiffusionPipeline)):
            continue
        for p in inspect.signature(cls.__init__).parameters.values():
            kinds = (p.annotation, *typing.get_args(p.annotation))
            if any(str(getattr(kind, "__module__", "")).startswith(places) for kind in kinds):
                found[p.name] = name
    del found["motion_adapter"]  # becomes a part of the unet
    assert {"transformer", "unet", "controlnet", "prior", "decoder"} <= set(found)
    assert set(found) <= set(NAMES), found


@pytest.mark.parametrize("name", [n for n in TINY if n not in ("ltx2", "prx")])
def test_a_made_up_call_reaches_every_denoiser(name: str) -> None:
    """Of ltx2 see test_tiny: its small VAE makes sequences of 20 000 tokens of small pictures.

    The text encoder of prx has its own configuration only once it was saved and loaded.
    """
    pipeline = TINY[name].build()
    pipeline.set_progress_bar_config(disable=True)
    signature = read_signature(type(pipeline))
    found = denoisers(pipeline)
    assert found
    reached = capture_inputs(pipeline, found, signature, NEEDED.get(name, {}))
    assert {n for n, inputs in reached.items() if inputs} == set(found)


@pytest.mark.parametrize("model", ["flux", "qwen-image", "wan22-t2v"])
@pytest.mark.parametrize("backend", RUNS_HERE)
def test_what_runs_here_is_used_and_draws_the_same(models: Path, model: str, backend: str) -> None:
    loaded = _load(models, model, backend)
    masked = ", native with masks" * (backend == "_native_flash" and model == "qwen-image")
    assert loaded.facts["attention_backend"] == backend + masked
    assert set().union(*_used(loaded).values()) == {backend}
    plain = draw(_load(models, model, NATIVE)).astype(int)
    assert np.abs(draw(loaded) - plain).max() <= 1


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {NATIVE, *RUNS_HERE}))
def test_what_does_not_run_here_says_why_and_falls_back(models: Path, backend: str) -> None:
    loaded = _load(models, "flux", backend)
    assert loaded.facts["attention_backend"] == NATIVE
    (attempt,) = loaded.facts["attention_attempts"]
    assert attempt["backend"] == backend
    assert attempt["reason"]
    (warning,) = (w for w in loaded.warnings if "attention" in w)
    assert warning.startswith(f"attention_backend '{backend}' is not usable here for transformer: ")
    assert warning.endswith(" Using 'native'.")
    assert _used(loaded) == {"transformer": {NATIVE}}


def test_native_is_what_plain_diffusers_does(models: Path) -> None:
    loaded = _load(models, "qwen-image", NATIVE)
    assert loaded.facts["attention_backend"] == NATIVE
    assert "attention_attempts" not in loaded.facts
    plain = DiffusionPipeline.from_pretrained(models / "qwen-image", torch_dtype=torch.float32)
    processors = plain.transformer.attn_processors.values()
    assert [p._attention_backend for p in processors] == [
        p._attention_backend for p in loaded.pipeline.transformer.attn_processors.values()
    ]


def test_auto_is_native_on_a_cpu(models: Path) -> None:
    loaded = _load(models, "flux", "auto", attention_fallback="error")
    assert loaded.facts["attention_backend"] == NATIVE
    assert loaded.warnings == ()
    assert np.array_equal(draw(loaded), draw(_load(models, "flux", NATIVE)))


def test_a_backend_without_masks_serves_the_calls_that_have_none(models: Path) -> None:
    """Two prompts of different length have a mask, one has none."""
    for _ in range(2):  # a second load in the process finds the same
        loaded = _load(models, "qwen-image", "FLASH_ATTN,_native_math")
        assert loaded.facts["attention_backend"] == f"_native_flash{WITHOUT_MASK}"
        assert "attention_attempts" not in loaded.facts
        assert loaded.warnings == ()
    assert _used(loaded) == {"transformer": {"_native_flash"}}
    native = _load(models, "qwen-image", NATIVE)
    flash = Registry._backends[AttentionBackendName("_native_flash")]
    for prompts, mask in ((["a"], False), (["a", "a cat in a red hat on a mat"], True)):
        masks: list[bool] = []

        def seen(*args: Any, masks: list[bool] = masks, **kwargs: Any) -> Any:
            masks.append(kwargs.get("attn_mask") is not None)
            return flash(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(Registry._backends, AttentionBackendName("_native_flash"), seen)
            drawn = draw(loaded, prompt=_texts(prompts)).astype(int)
        assert masks
        assert set(masks) == {mask}
        assert np.abs(drawn - draw(native, prompt=_texts(prompts))).max() <= 2


def test_a_backend_without_masks_is_refused_where_all_calls_have_one(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Registry._backends[AttentionBackendName("flex")]

    def never(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("`attn_mask` is not supported")

    with monkeypatch.context() as patch:
        _break(patch, "flex", never)
        loaded = _load(models, "qwen-image", "flex")
        assert loaded.facts["attention_backend"] == NATIVE
        assert "attn_mask" in loaded.facts["attention_attempts"][0]["reason"]
    assert Registry._backends[AttentionBackendName("flex")] is own


def test_on_nvidia_every_link_of_the_chain_is_tried(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the names of an NVIDIA GPU on this CPU, which has none of the packages."""
    from triton_diffusers.attention import choice as attention

    monkeypatch.setattr(attention, "platform_of", lambda device: "cuda")
    loaded = _load(models, "wan22-t2v", "FLASH_ATTN")
    attempts = loaded.facts["attention_attempts"]
    assert [a["backend"] for a in attempts] == list(chain("FLASH_ATTN", "cuda")[:-1])
    for attempt in attempts:
        package = BACKENDS[attempt["backend"]].package
        assert "denoiser" not in attempt
        assert attempt["reason"] == f"package {package} is not installed"
    assert loaded.facts["attention_backend"] == "_native_flash"
    masked = _load(models, "qwen-image", "auto")
    assert masked.facts["attention_backend"] == f"_native_flash{WITHOUT_MASK}"
    assert masked.facts["attention_attempts"] == attempts
    assert not any("attention" in text for text in masked.warnings)


def test_the_environments_backend_is_not_what_others_are_held_against(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Diffusers takes a default from DIFFUSERS_ATTN_BACKEND; native here means PyTorch's own."""
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "_active_backend", AttentionBackendName.FLASH)
        loaded = _load(models, "flux", "flex")
        fallen = _load(models, "flux", "sage")
        assert Registry.get_active_backend()[0] == AttentionBackendName.FLASH
    assert loaded.facts["attention_backend"] == "flex"
    assert _used(fallen) == {"transformer": {NATIVE}}
    assert fallen.pipeline.transformer.attn_processors.popitem()[1]._attention_backend == NATIVE


def test_native_tells_of_the_environments_backend_where_layers_take_one(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "flash")
    taking = _load(models, "wan22-t2v", NATIVE)
    assert taking.facts["attention_backend"] == "flash"
    (warning,) = taking.warnings
    assert "uses 'flash' untried for transformer, transformer_2; " in warning
    assert "TORCH_SDPA" in warning
    none = _load(models, "stable-diffusion", NATIVE)
    assert none.facts["attention_backend"] == NATIVE
    assert none.warnings == (
        "DIFFUSERS_ATTN_BACKEND 'flash' has no effect: no attention layers here take a backend",
    )
    both = SimpleNamespace(
        components={"transformer": taking.pipeline.transformer, "unet": none.pipeline.unet}
    )
    choice = choose_attention(both, ServeConfig(model="m"), taking.signature, {}, "cpu")
    assert choice.active == {"transformer": "flash", "unet": NATIVE}


def test_a_backend_that_ignores_masks_is_refused(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Registry._backends[AttentionBackendName.NATIVE]

    def ignores(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return native(query, key, value)

    with monkeypatch.context() as patch:
        _break(patch, "flex", ignores)
        loaded = _load(models, "qwen-image", "flex")
        assert "differs from native" in loaded.facts["attention_attempts"][0]["reason"]
        # without masks it is right
        assert _load(models, "flux", "flex").facts["attention_backend"] == "flex"


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda query: query * 0.0, "differs from native attention by"),
        (lambda query: query * float("nan"), "not finite"),
        (lambda query: query[..., :4], "RuntimeError"),
    ],
)
def test_a_backend_that_gives_something_else_is_refused(
    models: Path, monkeypatch: pytest.MonkeyPatch, result: Any, says: str
) -> None:
    with monkeypatch.context() as patch:
        _break(patch, "_native_math", lambda query, key, value, **_: result(query))
        loaded = _load(models, "flux", "_native_math,flex")
    assert loaded.facts["attention_backend"] == "flex"
    assert says in loaded.facts["attention_attempts"][0]["reason"]


def test_a_backend_that_dies_when_it_runs_is_refused(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(**_: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution")

    with monkeypatch.context() as patch:
        _break(patch, "_native_math", dies)
        with pytest.raises(ConfigError, match="no kernel image is available for execution") as told:
            _load(models, "flux", "_native_math", attention_fallback="error")
    assert "\n" not in str(told.value)
    assert "set attention_fallback to native" in str(told.value)


def test_models_of_one_process_keep_their_own(models: Path) -> None:
    math, plain = _load(models, "flux", "_native_math"), _load(models, "flux", NATIVE)
    other = _load(models, "flux", "flex")
    assert [_used(p)["transformer"] for p in (math, plain, other)] == [
        *({"_native_math"}, {NATIVE}, {"flex"})
    ]
    calls: list[str] = []
    functions = {n.value: f for n, f in Registry._backends.items()}

    def counted(name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return functions[name](*args, **kwargs)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in functions:
            _break(patch, name, counted(name))
        draw(plain)
    assert set(calls) == {NATIVE}


def test_every_denoiser_gets_it(models: Path) -> None:
    assert _used(_load(models, "wan22-t2v", "flex")) == {
        "transformer": {"flex"},
        "transformer_2": {"flex"},
    }
    assert _used(_load(models, "qwen-image-controlnet", "_native_math")) == {
        "transformer": {"_native_math"},
        "controlnet": {"_native_math"},
    }


def test_a_denoiser_that_takes_none_says_so(models: Path) -> None:
    loaded = _load(models, "stable-diffusion", "_native_math,flex")
    assert loaded.facts["attention_backend"] == NATIVE
    (attempt,) = loaded.facts["attention_attempts"]
    assert attempt["denoiser"] == "unet"
    assert "take no backend (AttnProcessor2_0)" in attempt["reason"]
    with pytest.raises(ConfigError, match="take no backend"):
        _load(models, "stable-diffusion", "flex", attention_fallback="error")


def test_a_model_that_no_made_up_call_reaches_says_what_to_give(tmp_path: Path) -> None:
    save("flux2-klein", tmp_path)
    loaded = _load(tmp_path, "flux2-klein", "_native_math")
    (attempt,) = loaded.facts["attention_attempts"]
    assert "not tried: no made-up call reached transformer (IndexError" in attempt["reason"]
    assert "diffusers_call_kwargs" in attempt["reason"]
    given = NEEDED["flux2-klein"]
    loaded = _load(tmp_path, "flux2-klein", "_native_math", diffusers_call_kwargs=given)
    assert loaded.facts["attention_backend"] == "_native_math"


def test_trying_leaves_no_trace(models: Path) -> None:
    loaded = _load(models, "wan22-t2v", NATIVE)
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    attributes = dict(vars(loaded.pipeline))
    config = ServeConfig(model="m", attention_backend="_native_efficient,flex")
    choice = choose_attention(loaded.pipeline, config, loaded.signature, {}, "cpu")
    assert choice.active == "flex"
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert vars(loaded.pipeline) == attributes
    assert loaded.pipeline.scheduler.num_inference_steps is None
    for module in denoisers(loaded.pipeline).values():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_backend_that_serves_few_of_the_layers_says_so(tmp_path: Path) -> None:
    save("wan-vace", tmp_path)
    loaded = _load(tmp_path, "wan-vace", NATIVE)
    transformer = loaded.pipeline.transformer
    *others, name = transformer.attn_processors

    class Fixed:
        def __init__(self, processor: Any) -> None:
            self.processor = processor

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.processor(*args, **kwargs)

    processors = transformer.attn_processors
    fixed = {n: Fixed(processors[n]) for n in others}
    transformer.set_attn_processor({**fixed, name: processors[name]})
    config = ServeConfig(model="m", attention_backend="flex")
    choice = choose_attention(loaded.pipeline, config, loaded.signature, {}, "cpu")
    assert choice.active == "flex"
    assert choice.warnings == (
        "attention backend 'flex' serves 1 of the 4 attention layers of transformer; the others "
        "take none",
    )


@pytest.mark.parametrize("backend", RUNS_HERE)
def test_the_demos_digits_stay_legible(backend: str) -> None:
    from scripts.train_demo_model import CALL_KWARGS

    loaded = _load(DEMO, str(DEMO), backend, diffusers_call_kwargs=CALL_KWARGS)
    assert loaded.facts["attention_backend"] == backend
    assert read_digits(loaded.pipeline) == list(range(10))


def test_quantized_and_half_precision_models_are_not_refused_for_rounding(models: Path) -> None:
    for options in ({"dtype": "bfloat16"}, {"quantization_config": "int8"}):
        loaded = _load(models, "flux", "flex", **options)
        assert loaded.facts["attention_backend"] == "flex"
