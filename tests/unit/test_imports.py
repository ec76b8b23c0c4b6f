# SPDX-License-Identifier: Apache-2.0
"""What must not load torch does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from builder.entries.config_pbtxt import MODEL_PY

ROOT = Path(__file__).parent.parent.parent
HEAVY = {"torch", "diffusers", "transformers"}
CHECK = "import sys; print(*sorted({n.partition('.')[0] for n in sys.modules}))"


def _imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{CHECK}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "triton_diffusers",
        "triton_diffusers.client",
        "triton_diffusers.calls.arguments",
        "triton_diffusers.engine.engine",
        "triton_diffusers.loading.entry",
        "triton_diffusers.loading.load",
        "triton_diffusers.media.decode",
        "triton_diffusers.calls.outputs",
        "triton_diffusers.running.run",
        "builder.main",
        "builder.probes.grpc",
        "builder.commands.serve",
    ],
)
def test_module_imports_no_torch(module: str) -> None:
    assert not HEAVY & _imported_by(f"import {module}")


@pytest.mark.parametrize("package", ["client", "gateway"])
def test_no_module_of_a_client_or_gateway_imports_torch(package: str) -> None:
    folder = ROOT / "triton_diffusers" / package
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in folder.rglob("*.py")]
    assert len(names) > 15
    assert not HEAVY & _imported_by(f"import {', '.join(sorted(names))}")


def test_a_probe_over_http_is_quick_to_import() -> None:
    imported = _imported_by("import builder.probes.http, builder.main; builder.main.make_parser()")
    assert not (HEAVY | {"numpy", "grpc", "tritonclient", "gevent", "rich"}) & imported


def test_the_client_needs_nothing_of_the_runtime() -> None:
    assert not {"av", "soundfile", "accelerate"} & _imported_by("import triton_diffusers.client")


def test_an_entrys_model_py_imports_no_torch(tmp_path: Path) -> None:
    """Triton imports model.py once more to complete a config: torch is for `initialize`."""
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None
    assert spec.origin is not None
    # the real module of Triton's Python backend, as the stub puts it on its path
    backend = Path(spec.origin).parent / "tritonserver" / "backends" / "python"
    (tmp_path / "model.py").write_text(MODEL_PY)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(backend)!r}]; import model"
    imported = _imported_by(f"{code}; model.TritonPythonModel.initialize")
    assert "triton_python_backend_utils" in imported
    assert not HEAVY & imported
