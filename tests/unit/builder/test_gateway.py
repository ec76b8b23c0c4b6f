# SPDX-License-Identifier: Apache-2.0
"""Options of `builder gateway`, what it says without its packages, and what it imports."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder import main as builder
from builder.commands import gateway
from tests.unit.test_imports import HEAVY, _imported_by
from triton_diffusers.errors import ConfigError
from triton_diffusers.gateway import Settings

SETTINGS = [name for name in Settings.model_fields if name not in gateway.SECRETS]
TEXTS = {
    "Literal": "markdown",
    "int": "99999999",
    "float": "1.5",
    "Path": "/tmp/x",
    "bool": "",
    "tuple": "a:1,b:2",
}


@pytest.fixture(autouse=True)
def _no_jobs_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def text_for(name: str) -> str:
    annotation = str(Settings.model_fields[name].annotation)
    return next((text for kind, text in TEXTS.items() if kind in annotation), "sqlite:///x")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_an_option_that_says_what_it_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, text = "--" + name.replace("_", "-"), text_for(name)
    words = [flag, text] if text else ["--no-" + flag[2:]]
    args = builder.parse(["gateway", *words])
    settings = gateway.read_settings(args)
    assert settings != Settings()
    others = {n: getattr(settings, n) for n in Settings.model_fields if n != name}
    assert others == {n: getattr(Settings(), n) for n in Settings.model_fields if n != name}
    with pytest.raises(SystemExit):
        builder.main(["gateway", "--help"])
    assert f"  {flag}" in capsys.readouterr().out
    assert Settings.model_fields[name].description


def test_an_option_beats_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DIFFUSERS_GATEWAY_MAX_REQUESTS", "3")
    assert gateway.read_settings(builder.parse(["gateway"])).max_requests == 3
    words = ["gateway", "--max-requests", "4"]
    assert gateway.read_settings(builder.parse(words)).max_requests == 4


def test_secrets_are_no_options_and_are_not_told() -> None:
    for name in gateway.SECRETS:
        with pytest.raises(SystemExit):
            builder.parse(["gateway", "--" + name.replace("_", "-"), "x"])
    for name in gateway.URLS:
        words = ["gateway", f"--{name}", "postgresql://me:hidden@host/d"]
        with pytest.raises(ConfigError, match=name.upper()) as told:
            gateway.read_settings(builder.parse(words))
        assert "hidden" not in str(told.value)
    assert "hidden" not in repr(Settings(api_keys="hidden"))


@pytest.mark.parametrize("option", ["--timeout-s", "--expire-after-s"])
@pytest.mark.parametrize("text", ["inf", "1e300", "nan", "0"])
def test_times_are_finite(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=option):
        gateway.read_settings(builder.parse(["gateway", option, text]))


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_keys_that_did_not_arrive_let_nobody_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DIFFUSERS_GATEWAY_API_KEYS", text)
    with pytest.raises(ConfigError, match="API_KEYS: it holds no key"):
        gateway.read_settings(builder.parse(["gateway"]))


@pytest.mark.parametrize(
    "package", ["fastapi", "uvicorn", "pydantic_settings", "prometheus_client"]
)
def test_a_package_that_is_missing_is_told_with_what_to_install(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from builder.main import main; "
    code += "sys.exit(main(['gateway', '--port', '0']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert package in done.stderr
    assert "pip install '.[gateway]'" in done.stderr


@pytest.mark.parametrize(
    "words", [["add-model", "Qwen/Qwen-Image", "--dry-run"], ["inspect", "demo"], ["check", "demo"]]
)
def test_a_command_that_needs_the_runtime_says_so(words: list[str]) -> None:
    code = "import sys; sys.modules['diffusers'] = None; from builder.main import main; "
    code += f"sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert "pip install '.[runtime]'" in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import triton_diffusers.gateway.app",
        "from triton_diffusers.gateway import create_app; create_app()",
    ],
)
def test_the_gateway_imports_no_torch(code: str) -> None:
    assert not HEAVY & _imported_by(code)


def test_the_settings_are_quick_to_import() -> None:
    imported = _imported_by("from triton_diffusers.gateway import Settings")
    assert not (HEAVY | {"fastapi", "numpy", "grpc", "tritonclient"}) & imported


def test_other_commands_need_none_of_its_packages() -> None:
    imported = _imported_by("import builder.main as b; b.parse(['serve', 'demo'])")
    assert not {"fastapi", "pydantic", "uvicorn"} & imported


def test_it_starts_quickly() -> None:
    code = "from triton_diffusers.gateway import create_app; create_app()"
    took = []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        took.append(time.monotonic() - started)
    assert min(took) < 5
