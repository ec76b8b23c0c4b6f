# SPDX-License-Identifier: Apache-2.0
"""`builder serve --print-command`: the line, run by a shell, serves the demo."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from builder import main as builder
from triton_diffusers.client import DiffusersClient
from triton_diffusers.contract import ADMIN_HEADER

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 120


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    assert builder.main(["serve", "--print-command", *ports, *words]) == 0
    said = capsys.readouterr()
    assert "key of administrative calls" in said.err
    assert said.out.count("\n") == 1
    return said.out


def status(url: str, **headers: str) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_shell_serves_the_demo_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shutil.copytree(ROOT / "model_repository" / "demo", tmp_path / "it's here" / "demo")
    line = printed(capsys, "demo", "--repository", str(tmp_path / "it's here"))
    assert printed(capsys, "--repository", str(tmp_path / "it's here")).count("=demo") == 1
    options = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
    http, grpc = (f"127.0.0.1:{options[f'--{kind}-port']}" for kind in ("http", "grpc"))
    with (tmp_path / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["sh", "-c", line],
            cwd=ROOT,  # the stub imports from there, as in every test of a checkout
            env={"HOME": str(tmp_path)},  # all that it needs stands in the line
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while status(f"http://{http}/v2/models/demo/ready") != 200:
            assert shell.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        with DiffusersClient(grpc, model="demo", protocol="grpc") as client:
            result = client.generate(prompt="a handwritten one", num_inference_steps=1)
        assert result.images[0].size == (64, 64)
        logging = f"http://{http}/v2/logging"
        assert status(logging) == 403
        key = options["--http-restricted-api"].partition(f"{ADMIN_HEADER}=")[2]
        assert status(logging, **{ADMIN_HEADER: key}) == 200
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_the_line_has_what_serve_would_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "admin.key"
    words = ["demo", "--repository", str(ROOT / "model_repository"), "--host", "0.0.0.0"]
    words += ["--admin-key-file", str(key), "--exit-timeout", "7", "--", "--log-verbose=1"]
    line = printed(capsys, *words)
    for option in ("--http-address=0.0.0.0", "--exit-timeout-secs=7", "--log-verbose=1"):
        assert option in shlex.split(line)
    assert key.read_text().split()[-1] in line
