# SPDX-License-Identifier: Apache-2.0
"""`./scripts/demo --gateway` once the environment is there, and the gateway's benchmark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from PIL import Image

from tests.server.gateway.calling import generate

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 240


def test_the_demo_serves_a_page_and_an_api_until_it_is_told_to_stop(tmp_path: Path) -> None:
    output = tmp_path / "new" / "seven.png"
    words = (ROOT / "scripts" / "run_demo.py", "--gateway", "--port", "0", "--output", output)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout
        told = ""
        while "ready" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        (page,) = re.findall(r"page +(http://\S+)", told)
        (api,) = re.findall(r"API +(http://\S+)/v1", told)
        with Image.open(output) as image:
            assert image.size == (64, 64)
        assert "<html" in httpx.get(page, timeout=60).text
        assert generate(api, model="demo").status_code == 200
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert rest.splitlines()[-1] == str(output)
    finally:
        process.kill()
        process.wait(60)


def test_256_connections_are_held_with_bounded_memory() -> None:
    command = [sys.executable, "-m", "benchmarks", "gateway", "--json"]
    command += ["--calls", "5", "--connections", "256", "--requests", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: slow, on a busy machine
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == 0
    assert found["requests"] == 256
    assert found["open_connections"] >= 250
    assert found["memory_peak_mib"] - found["memory_before_mib"] < 64
