# SPDX-License-Identifier: Apache-2.0
"""The default limits let the own defaults of every pipeline of diffusers pass."""

from __future__ import annotations

import diffusers
import pytest

from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.calls.limits import check_ranges
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.signature import Signature, read_signature

MANY_STEPS = {"ScoreSdeVePipeline": 2000}
"""Classes whose own steps are above max_steps: a request may leave them out, not send them."""
NAMES = sorted(name for name in dir(diffusers) if name.endswith("Pipeline"))


def _signatures() -> dict[str, Signature]:
    found = {}
    for name in NAMES:
        try:
            found[name] = read_signature(getattr(diffusers, name))
        except (ConfigError, ImportError):
            continue  # no call of its own, or a package that is not here
    return found


def test_defaults_pass() -> None:
    signatures = _signatures()
    assert len(signatures) > 200
    config = ServeConfig(model="m")
    for name, signature in signatures.items():
        defaults = {p.name: p.default for p in signature.parameters.values()}
        if name in MANY_STEPS:
            assert defaults.pop("num_inference_steps") == MANY_STEPS[name]
        try:
            check_ranges(defaults, config)
            check_call_kwargs(config, signature)
        except Exception as error:
            pytest.fail(f"{name}: {error}")
