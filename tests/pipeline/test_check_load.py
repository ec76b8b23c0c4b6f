# SPDX-License-Identifier: Apache-2.0
"""`builder check --load` says what the load would say, whatever becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import main as builder
from tests.server.entries import add_entry
from tests.tiny import save

CODE = """
import os, signal, time
from diffusers import StableDiffusionPipeline

class Odd(StableDiffusionPipeline):
    def set_progress_bar_config(self, **options):
        os.write(1, b"not an answer\\n")
        {}
        return super().set_progress_bar_config(**options)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("stable-diffusion", tmp_path_factory.mktemp("check-load"))


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), "", ("ok    odd: StableDiffusionPipeline, ", ": loaded in ", "float32, on cpu")),
        (
            ("--scheduler", "FlowMatchEulerDiscreteScheduler"),
            "",
            ("FAIL  odd: ", "with 'scheduler' a small call fails"),
        ),
        (
            (),
            "os.kill(os.getpid(), signal.SIGKILL)",
            ("FAIL  odd: its process was killed", "want of memory"),
        ),
        ((), "os._exit(3)", ("FAIL  odd: its process ended with exit code 3",)),
        (
            ("--diffusers-load-kwargs", '{"safety_checker": null}'),
            "time.sleep(99)",
            ("FAIL  odd: it did not load within 12 s", "--timeout"),
        ),
    ],
)
def test_check_load(
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: str,
    words: tuple[str, ...],
) -> None:
    if code:
        (tmp_path / "odd.py").write_text(CODE.format(code))
        options += ("--custom-pipeline", str(tmp_path / "odd.py"))
    add_entry(tmp_path / "repo", "odd", model, *options)
    command = ["check", "odd", "--repository", str(tmp_path / "repo")]
    capfd.readouterr()
    assert builder.main(command) == 0
    assert capfd.readouterr().out.startswith("ok    odd: ")
    failed = builder.main([*command, "--load", "--timeout", "12" if "sleep" in code else "300"])
    said = capfd.readouterr()
    assert failed == words[0].startswith("FAIL")
    assert said.out.count("\n") == 1
    for word in words:
        assert word in said.out
    if "sleep" in code:
        assert "  odd: " in said.err  # how far it was


def test_a_timeout_is_for_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert builder.main(["check", "--timeout", "9", "--repository", str(tmp_path)]) == 1
    assert "--timeout is for --load" in capsys.readouterr().err
