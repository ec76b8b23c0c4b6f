# SPDX-License-Identifier: Apache-2.0
"""What a probe asks of a server, over whichever protocol, and what a model answers."""

import json
from typing import Any, Protocol

from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import Config


class NoAnswerError(ServerError):
    """The server or the model did not answer in time."""


class Transport(Protocol):
    """What a probe asks of a server. Raises NoAnswerError, or ServerError with Triton's words."""

    lists_all: bool
    """Whether `states` tells of models that are not ready, too."""

    def live(self) -> None:
        """Return when the server is live."""

    def states(self) -> dict[str, str]:
        """Return the state of every model that the server knows, such as READY, or ''."""

    def config(self, name: str) -> Config:
        """Return the configuration of a loaded model."""

    def ask(self, name: str, config: Config) -> str:
        """Send one probe request and return the `info` that comes back."""


def read_answer(info: str) -> dict[str, Any]:
    """Read what a model says of itself: `status`, `waiting`, `running` and more."""
    try:
        answer = dict(json.loads(info))
    except (ValueError, TypeError):
        answer = {}
    if not answer.keys() >= {"status", "waiting", "running"}:
        raise ServerError(f"'{info[:80]}' is no answer to a probe")
    return answer
