# SPDX-License-Identifier: Apache-2.0
"""schemathesis: requests made up from the gateway's own OpenAPI document find no 500."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from builder.tritonserver.server import Server
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.gateway import Settings, create_app

EXAMPLES = 15
TIMEOUT_S = 1.0
"""For a call of the model: what takes longer is answered with 504, which the document lists."""

CONFORMANCE = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def short_gateway(demo_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that gives up on a call soon."""
    folder: Path = tmp_path_factory.mktemp("schema-gateway")
    database = f"sqlite:///{folder / 'jobs.db'}"
    with serve_gateway(
        demo_server.grpc_url, database=database, files=str(folder), timeout_s=TIMEOUT_S
    ) as url:
        yield url


def document() -> dict[str, Any]:
    """The OpenAPI document; the app's database is none that stays."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(database=f"sqlite:///{folder}/jobs.db", files=folder))
        return app.openapi()


schema = schemathesis.openapi.from_dict(document())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_a_500_and_every_answer_is_as_documented(
    case: Any, short_gateway: str
) -> None:
    response = case.call(base_url=short_gateway, timeout=60)
    assert response.status_code != 500, response.text
    case.validate_response(response, checks=CONFORMANCE)
