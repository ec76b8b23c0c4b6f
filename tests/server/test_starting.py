# SPDX-License-Identifier: Apache-2.0
"""Starts that Triton alone would hang on for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.entries.repository import MODEL
from builder.tritonserver import server as tritonserver
from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import start_server
from triton_diffusers.client import DiffusersClient

CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input [ {{ name: "x" data_type: TYPE_INT64 dims: [ 1 ] optional: true }} ]
output [ {{ name: "x" data_type: TYPE_INT64 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU }} ]
"""
DIES = """import os

os._exit(7)
"""
ANSWERS = """import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("x", np.array([3]))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


def _write(repository: Path, name: str, code: str) -> None:
    (repository / name / MODEL).parent.mkdir(parents=True)
    (repository / name / MODEL).write_text(code)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name))


def test_a_repository_whose_path_has_a_space(tmp_path: Path) -> None:
    repository = tmp_path / "my models"
    _write(repository, "answers", ANSWERS)
    with (
        start_server(repository, ["answers"], log=tmp_path / "log") as server,
        DiffusersClient(server.grpc_url, model="answers") as client,
    ):
        assert client.generate().arrays["x"].tolist() == [3]


def test_a_process_that_dies_while_its_model_loads(tmp_path: Path) -> None:
    _write(tmp_path / "repository", "dies", DIES)
    _write(tmp_path / "repository", "answers", ANSWERS)
    with start_server(tmp_path / "repository", log=tmp_path / "log", exit_timeout_s=1) as server:
        with pytest.raises(ServerError, match="dies"):
            server.load("dies", timeout_s=60)
        server.load("answers")


def test_a_process_that_dies_before_triton_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub cannot read a path with a space; Triton waits for it for ever."""
    monkeypatch.setattr(tritonserver, "_without_spaces", lambda repository, layout: repository)
    repository = tmp_path / "my models"
    _write(repository, "answers", ANSWERS)
    with (
        start_server(repository, log=tmp_path / "log", exit_timeout_s=1) as server,
        pytest.raises(ServerError, match="'answers' died while loading"),
    ):
        server.load("answers")
