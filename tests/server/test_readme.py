# SPDX-License-Identifier: Apache-2.0
"""The examples of README.md and of two pages, run as they stand; only the ports differ."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.server.gateway.serving import serve_gateway

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = re.compile(r"<!-- run: (\S+) -->\n```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall((ROOT / "README.md").read_text())
REQUEST_EXAMPLES = EXAMPLE.findall((ROOT / "docs" / "requests.md").read_text())
GATEWAY_EXAMPLES = EXAMPLE.findall((ROOT / "docs" / "gateway.md").read_text())
TIMEOUT_S = 120


def name_of(example: tuple[str, str, str]) -> str:
    """The first thing in an example that tells it from the others."""
    ways = r"tritonclient\.\w+|DiffusersClient|OpenAI|builder|/v1/\w+|/generate|/infer"
    return re.search(ways, example[2])[0]


@pytest.fixture(scope="module")
def reference(demo_server, tmp_path_factory) -> np.ndarray:
    """The picture that all examples with seed 7 ask for."""
    return picture_of(EXAMPLES[0], demo_server, tmp_path_factory.mktemp("reference"))


def picture_of(example, server, folder: Path) -> np.ndarray:
    if "localhost:8080" not in example[2]:
        return run(example, server, folder)
    with serve_gateway(server.grpc_url) as url:
        file, language, code = example
        return run((file, language, re.sub("(http://)?localhost:8080", url, code)), server, folder)


def run(example: tuple[str, str, str], server, folder: Path) -> np.ndarray:
    file, language, code = example
    code = code.replace("localhost:8000", server.http_url)
    code = code.replace("localhost:8001", server.grpc_url)
    if language == "sh":
        # the address of `builder generate` is the default one in the README
        code = re.sub(r"(builder generate .*)", rf"\1 --url {server.grpc_url}", code)
    command = [sys.executable, "-c"] if language == "python" else ["sh", "-e", "-c"]
    scripts = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    options = {"cwd": folder, "env": env, "timeout": TIMEOUT_S}
    done = subprocess.run([*command, code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    with Image.open(folder / file) as image:
        return np.asarray(image.convert("RGB"))


def test_every_way_of_calling_has_an_example():
    ways = [name_of(example) for example in EXAMPLES]
    assert ways == ["builder", "DiffusersClient", "/generate", "OpenAI"]
    ways = [name_of(example) for example in REQUEST_EXAMPLES]
    assert ways == ["tritonclient.grpc", "tritonclient.http", "/infer"]
    assert [name_of(example) for example in GATEWAY_EXAMPLES] == ["/v1/images", "/v1/chat"]


@pytest.mark.parametrize("example", [*EXAMPLES, *REQUEST_EXAMPLES, *GATEWAY_EXAMPLES], ids=name_of)
def test_example_makes_its_picture(example, demo_server, reference, tmp_path):
    if "curl" in example[2] and not shutil.which("curl") and "CI" not in os.environ:
        pytest.skip("curl is not installed")
    picture = picture_of(example, demo_server, tmp_path)
    assert picture.shape == (64, 64, 3)
    if "seed" in example[2]:
        assert np.array_equal(picture, reference)
    else:
        assert picture.std() > 10


def test_the_demo_script_ends_with_the_path_of_its_picture(tmp_path):
    """What `./scripts/demo` runs once the environment is there."""
    output = tmp_path / "new" / "three.png"
    command = [sys.executable, ROOT / "scripts" / "run_demo.py", "a handwritten three"]
    done = subprocess.run(
        [*command, "--output", output], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == str(output)
    with Image.open(output) as image:
        assert image.size == (64, 64)


def test_the_demo_script_shows_why_it_failed(tmp_path):
    entry = tmp_path / "broken"
    shutil.copytree(ROOT / "model_repository" / "demo" / "1", entry / "1")
    config = (ROOT / "model_repository" / "demo" / "config.pbtxt").read_text()
    (entry / "config.pbtxt").write_text(config.replace('"demo"', '"broken"'))  # has no weights
    command = [sys.executable, ROOT / "scripts" / "run_demo.py", "--model", "broken"]
    words = ("--repository", tmp_path, "--output", tmp_path / "x.png")
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "no such folder" in done.stderr.splitlines()[-1]
    assert "  | " in done.stderr
    assert not (tmp_path / "x.png").exists()
