# SPDX-License-Identifier: Apache-2.0
"""What a pipeline gives its denoisers: recorded in made-up calls that end with the last of them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from triton_diffusers.calls.sample import first_that_works
from triton_diffusers.contract import Kind
from triton_diffusers.pipelines.isolation import isolate, read_processors, restored_on_failure
from triton_diffusers.pipelines.signature import Signature

PROMPTS = ("a lighthouse", "a lighthouse at dusk, seen from a small boat on a calm sea")
"""Two of different length: together they make most models pass a mask."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""(args, kwargs) of a denoiser's forward."""


class _Reached(BaseException):
    """Every denoiser was reached; no Exception, so that no pipeline takes it for an error."""


def capture_inputs(
    pipeline: Any,
    denoisers: Mapping[str, Any],
    signature: Signature,
    call_kwargs: Mapping[str, Any],
) -> dict[str, list[Inputs]]:
    """Return the inputs of each denoiser in a call with one prompt, and in one with two.

    A second denoiser that is built like another (Wan 2.2's) gets the same, so that the call need
    not go on to it. Raises what the pipeline raises where no made-up call reaches a denoiser.
    """
    used: dict[str, Any] = {}

    def call(kwargs: dict[str, Any]) -> dict[str, Inputs]:
        used.update(kwargs)
        return _reach(pipeline, denoisers, kwargs)

    calls = [first_that_works(signature, call_kwargs, None, call)]
    prompt = signature.parameters.get("prompt")
    if prompt is not None and prompt.kind is Kind.TEXT:
        with contextlib.suppress(Exception):  # not every pipeline takes two
            calls.append(_reach(pipeline, denoisers, used | {"prompt": list(PROMPTS)}))
    return {
        name: [inputs for reached in calls if (inputs := _inputs_of(name, reached, denoisers))]
        for name in denoisers
    }


def copied(tree: Any) -> Any:
    """Copy the containers and tensors of inputs: some denoisers change theirs."""
    import torch

    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(copied(value) for value in tree)
    return tree


def _reach(
    pipeline: Any, denoisers: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Inputs]:
    """Call the pipeline; return the first inputs of each denoiser that has run with them."""
    with _recorded(denoisers) as reached:
        try:
            with restored_on_failure(read_processors(pipeline)):
                isolate(pipeline, lambda done, total: None)(**kwargs)
        except _Reached:
            pass
        finally:
            if getattr(pipeline, "_all_hooks", None):  # model offload: nothing stays on the GPU
                pipeline.maybe_free_model_hooks()
    if not reached:
        raise RuntimeError("the call ended without running a denoiser")
    return reached


@contextlib.contextmanager
def _recorded(denoisers: Mapping[str, Any]) -> Iterator[dict[str, Inputs]]:
    """Collect what the denoisers are given; raise _Reached when the last of them has run."""
    started: dict[str, Inputs] = {}
    reached: dict[str, Inputs] = {}

    def start(name: str) -> Any:
        def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name not in started:
                started[name] = copied((args, kwargs))

        return keep

    def end(name: str) -> Any:
        def stop(module: Any, args: Any, output: Any) -> None:
            reached[name] = started[name]
            if all(_inputs_of(n, reached, denoisers) for n in denoisers):
                raise _Reached

        return stop

    hooks = []
    for name, module in denoisers.items():
        hooks.append(module.register_forward_pre_hook(start(name), with_kwargs=True))
        hooks.append(module.register_forward_hook(end(name)))
    try:
        yield reached
    finally:
        for handle in hooks:
            handle.remove()


def _inputs_of(
    name: str, reached: Mapping[str, Inputs], denoisers: Mapping[str, Any]
) -> Inputs | None:
    if name in reached:
        return reached[name]
    alike = (n for n in reached if _are_alike(denoisers[n], denoisers[name]))
    return next((reached[n] for n in alike), None)


def _are_alike(one: Any, other: Any) -> bool:
    configs = [dict(getattr(m, "config", None) or {}) for m in (one, other)]
    for config in configs:
        config.pop("_name_or_path", None)
    return type(one) is type(other) and configs[0] == configs[1]
