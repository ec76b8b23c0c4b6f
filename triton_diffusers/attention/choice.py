# SPDX-License-Identifier: Apache-2.0
"""Which attention backend each denoiser of a pipeline gets, chosen while it loads.

A backend is chosen only after it has run (probe.py). `native`, the default, is what
plain diffusers does: nothing is probed, set or fetched.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.attention.backends import BACKENDS, NATIVE, chain
from triton_diffusers.attention.probe import Probe, takes_backend
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, near_miss
from triton_diffusers.pipelines.denoisers import denoisers
from triton_diffusers.pipelines.signature import Signature

ENVIRONMENT = "DIFFUSERS_ATTN_BACKEND"
"""The variable with which diffusers itself takes another backend; `native` leaves it its say."""

WITHOUT_MASK = ", native with masks"
"""What is told of a backend that takes no mask: calls that pass one have native attention."""


@dataclass(frozen=True)
class Attempt:
    """A backend that was tried and not chosen, and why."""

    backend: str
    denoiser: str | None
    """None: of no use for any of them."""
    reason: str


@dataclass(frozen=True)
class AttentionChoice:
    """What was chosen."""

    active: str | dict[str, str] = NATIVE
    """The backend; by denoiser where they have different ones."""
    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def check_attention(config: ServeConfig) -> None:
    """Raise ConfigError for a name that is refused or unknown, and a fallback without effect."""
    chain(config.attention_backend, "cpu")
    if config.attention_fallback == "error" and _is_native(config):
        raise ConfigError(
            "parameter 'attention_fallback' error has no effect with attention_backend native, "
            "which has nothing to fall back from; remove it, or name a backend"
        )


def check_environment() -> None:
    """Raise ConfigError for a backend in the environment with which diffusers does not import."""
    given = os.environ.get(ENVIRONMENT, NATIVE)
    if given not in BACKENDS:
        close = given.lower() if given.lower() in BACKENDS else None
        hint = f" Did you mean '{close}'?" if close else near_miss(given.lower(), BACKENDS)
        raise ConfigError(
            f"environment variable {ENVIRONMENT} '{given}' is no attention backend of diffusers."
            f"{hint or ' Accepted: ' + ', '.join(BACKENDS) + '.'} Correct it, or unset it."
        )


def choose_attention(
    pipeline: Any,
    config: ServeConfig,
    signature: Signature,
    call_kwargs: Mapping[str, Any],
    device: str,
) -> AttentionChoice:
    """Give every denoiser the first backend that runs on it and agrees with native attention.

    `native` alone changes nothing. Where no backend works a denoiser keeps PyTorch's attention,
    with a warning; ConfigError instead where `attention_fallback` is error.
    """
    if _is_native(config):
        return _left_alone(pipeline)
    found = denoisers(pipeline)
    attempts: list[Attempt] = []
    notes: list[str] = []
    with Probe(pipeline, found, signature, call_kwargs, device) as probe:
        chosen = {n: _choose_one(n, config, probe, platform_of(device), attempts) for n in found}
        active = {name: backend for name, backend in chosen.items() if backend}
        divided = probe.with_masks_native & active.keys()
        lost = [name for name in found if name not in active]
        probe.set_native(lost)
    for name, backend in active.items():
        notes += probe.notes(name, backend)
    if lost or not found:
        notes.append(_fall_back(config, lost, attempts))
    told = {n: f"{b}{WITHOUT_MASK}" if n in divided else b for n, b in active.items()}
    return AttentionChoice(_told(found, told), tuple(attempts), tuple(notes))


def _choose_one(
    name: str, config: ServeConfig, probe: Probe, platform: str, attempts: list[Attempt]
) -> str | None:
    """Give one denoiser the first backend that works; note in `attempts` those that do not."""
    for backend in chain(config.attention_backend, platform):
        row = BACKENDS[backend]
        if backend == NATIVE:
            probe.set_native([name])
            return backend
        if reason := row.unavailable(platform):
            attempt = Attempt(backend, None, reason)
        elif reason := probe.why_none(name):
            attempt = Attempt(config.attention_backend, name, reason)
        elif reason := probe.try_backend(name, backend, row.tolerance):
            attempt = Attempt(backend, name, reason)
        else:
            return backend
        if attempt not in attempts:
            attempts.append(attempt)
    return None


def platform_of(device: str) -> str:
    """Return the platform of a device such as cuda:0: its type, or rocm for AMD's GPUs."""
    kind = device.partition(":")[0]
    if kind == "cuda":
        import torch

        return "rocm" if torch.version.hip else kind
    return kind


def _is_native(config: ServeConfig) -> bool:
    return config.attention_backend.strip().lower() == NATIVE


def _left_alone(pipeline: Any) -> AttentionChoice:
    """Change nothing; tell of the backend that diffusers takes from the environment, and where."""
    given = os.environ.get(ENVIRONMENT, NATIVE)
    if given == NATIVE:
        return AttentionChoice()
    found = denoisers(pipeline)
    active = {name: given for name, denoiser in found.items() if takes_backend(denoiser)}
    if not active:
        text = f"{ENVIRONMENT} '{given}' has no effect: no attention layers here take a backend"
        return AttentionChoice(warnings=(text,))
    text = (
        f"{ENVIRONMENT} is set, so diffusers uses '{given}' untried for {', '.join(active)}; set "
        f"attention_backend to '{given}' to have it tried, or to TORCH_SDPA for PyTorch's own"
    )
    return AttentionChoice(_told(found, active), warnings=(text,))


def _fall_back(config: ServeConfig, lost: list[str], attempts: list[Attempt]) -> str:
    """Word the warning that native attention is used; raise ConfigError where it must not be."""
    mine = [a for a in attempts if a.denoiser is None or a.denoiser in lost]
    given = config.attention_backend
    told = [a.reason if a.backend == given else f"{a.backend}: {a.reason}" for a in mine]
    where = f" for {', '.join(lost)}" if lost else ""
    why = "; ".join(dict.fromkeys(told)) or "the pipeline has no denoiser"
    text = f"attention_backend '{given}' is not usable here{where}: {why}."
    if config.attention_fallback == "error":
        raise ConfigError(
            f"{text} Choose another, or set attention_fallback to native to run with PyTorch's own"
        )
    return f"{text} Using 'native'."


def _told(found: Mapping[str, Any], active: Mapping[str, str]) -> str | dict[str, str]:
    by_name = {name: active.get(name, NATIVE) for name in found}
    backends = set(by_name.values())
    return backends.pop() if len(backends) == 1 else by_name or NATIVE
