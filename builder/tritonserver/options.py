# SPDX-License-Identifier: Apache-2.0
"""Options of tritonserver that `builder serve` sets itself."""

from collections.abc import Sequence

from builder.tritonserver.installation import ServerError

OWNED_OPTIONS = {
    "model-repository": "--repository",
    "model-store": "--repository",
    "http-port": "--http-port",
    "grpc-port": "--grpc-port",
    "metrics-port": "--metrics-port",
    "http-address": "--host",
    "grpc-address": "--host",
    "metrics-address": "--host",
    "load-model": "the names before the --",
    "model-control-mode": "none: it is always explicit",
    "allow-http": "none: models are loaded over HTTP",
    "exit-timeout-secs": "--exit-timeout",
    "backend-directory": "a tritonserver on PATH: it brings its own backends",
}
"""Triton options that `start_server` sets itself, and what to use instead."""


def refuse_owned(extra: Sequence[str]) -> None:
    """Refuse Triton options that would contradict ours."""
    for option in extra:
        name = option.lstrip("-").partition("=")[0]
        if name in OWNED_OPTIONS:
            raise ServerError(f"--{name} is set by builder serve; use {OWNED_OPTIONS[name]}")
