# SPDX-License-Identifier: Apache-2.0
"""With /dev/shm full small answers still go out, and large ones are refused in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.wire import BUSY_STATUS

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
SMALL, LARGE = str(16 * 16 * 3), str(64 * 128 * 128 * 3)


def test_small_answers_go_out_of_a_full_shared_memory(tmp_path: Path) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here: /dev/shm is everybody's")
    command = [*NAMESPACE, sys.executable, "-m", "tests.server.full_shared_memory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["small"] == [SMALL] * 12
    assert found["with room"] == [LARGE] * 2
    http, *grpc = found["large"]
    assert http.startswith(BUSY_STATUS["http"])
    for told in (http, *grpc):
        assert "the answer of 3.00 MB does not fit" in told
        assert "--shm-size=1g" in told
        assert "Traceback" not in told
    assert all(told.startswith(BUSY_STATUS["grpc"]) for told in grpc)
