# SPDX-License-Identifier: Apache-2.0
"""What the app holds while it runs."""

from dataclasses import dataclass, field

from fastapi import Request

from triton_diffusers.gateway.jobs.jobs import Jobs
from triton_diffusers.gateway.models import Models
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.gateway.sizes import KnownSizes


@dataclass(frozen=True)
class GatewayState:
    """What the endpoints share."""

    settings: Settings
    models: Models
    jobs: Jobs
    sizes: KnownSizes = field(default_factory=KnownSizes)


def state_of(request: Request) -> GatewayState:
    """Return the state of the app that a request came to."""
    state: GatewayState = request.app.state.gateway
    return state
