# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.py: says what it would check without a GPU, and runs where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the script where torch sees no GPU, whatever the machine has."""
    command = [sys.executable, str(SCRIPT), *options]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=hidden)


def test_without_a_gpu_it_is_not_run() -> None:
    done = _run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not run: ")
    for check in ("parity", "quantization", "attention", "placement", "compilation"):
        assert f"  {check}: " in done.stdout


def test_what_a_cpu_can_holds_there() -> None:
    done = _run("--device", "cpu", "--only", "parity", "--only", "placement")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       bfloat16: identical to plain diffusers" in done.stdout
    assert "refused  enable_cpu_offload: " in done.stdout
    assert "0 failed" in done.stdout
