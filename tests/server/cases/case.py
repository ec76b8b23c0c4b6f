# SPDX-License-Identifier: Apache-2.0
"""What one refused request is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A request that gets INVALID_ARG over gRPC and 400 over HTTP.

    inputs: by name; a function is called for the value, so that large files are made late.
    words: what the message must say, in any order: what is wrong and what to send instead.
    parameters: request parameters, which are no tensors.
    """

    name: str
    entry: str
    inputs: Mapping[str, Any]
    words: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def made_inputs(self) -> dict[str, Any]:
        """The inputs with every late value made."""
        return {k: v() if callable(v) else v for k, v in self.inputs.items()}
