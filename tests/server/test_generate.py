# SPDX-License-Identifier: Apache-2.0
"""`builder generate` against the demo model, over both protocols."""

from pathlib import Path

import pytest
from PIL import Image

from builder import main as builder
from builder.tritonserver.server import Server

PROTOCOLS = ("grpc", "http")


@pytest.fixture(params=PROTOCOLS)
def where(request: pytest.FixtureRequest, demo_server: Server) -> list[str]:
    urls = {"grpc": demo_server.grpc_url, "http": demo_server.http_url}
    return ["--protocol", request.param, "--url", urls[request.param]]


def generate(where: list[str], *words: object) -> int:
    return builder.main(["generate", "demo", *where, *map(str, words)])


def test_a_picture_and_its_seed(where, tmp_path, capsys):
    first, again = tmp_path / "first.png", tmp_path / "again.png"
    words = ("--prompt", "a handwritten seven", "--num-inference-steps", "2")
    assert generate(where, *words, "--output", first) == 0
    seed, path = capsys.readouterr().out.splitlines()
    assert path == str(first)
    assert generate(where, *words, "--seed", seed.split()[1], "--output", again) == 0
    assert first.read_bytes() == again.read_bytes()
    assert Image.open(first).size == (64, 64)


def test_several_pictures_are_numbered(where, tmp_path, capsys):
    words = ("--prompt", "a one", "--prompt", "a two", "--seed", "1", "--seed", "2")
    steps = ("--num-inference-steps", "1")
    assert generate(where, *words, *steps, "--output", tmp_path / "n.jpg") == 0
    seed, *paths = capsys.readouterr().out.splitlines()
    assert seed == "seed 1 2"
    assert [Path(p).name for p in paths] == ["n-0.jpg", "n-1.jpg"]
    assert all(Path(p).stat().st_size for p in paths)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--promp", "x"], "Did you mean 'prompt'?"),
        (["--seed", "x", "--prompt", "x"], "'x' is not a whole number"),
        (["--prompt", "x", "--height", "-8"], "height"),
        (["--prompt", "x", "--extra", "{"], "JSON"),
    ],
)
def test_refusals_are_one_line(where, tmp_path, capsys, words, message):
    output = tmp_path / "x.png"
    assert generate(where, *words, "--output", output) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not output.exists()


def test_the_suffix_is_the_format(where, tmp_path, capsys):
    words = ("--prompt", "a one", "--num-inference-steps", "1", "--seed", "1")
    small, large = tmp_path / "small.jpg", tmp_path / "large.jpg"
    assert generate(where, *words, "--output-quality", "5", "--output", small) == 0
    assert generate(where, *words, "--output-quality", "95", "--output", large) == 0
    assert small.stat().st_size < large.stat().st_size
    capsys.readouterr()
    png = tmp_path / "x.png"
    assert generate(where, *words, "--output-format", "jpeg", "--output", png) == 1
    assert "--output-format jpeg does not fit" in capsys.readouterr().err
    assert not png.exists()
    assert generate(where, *words, "--output-format", "png", "--output", png) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_server_says_how_to_start_one(protocol, tmp_path, capsys):
    where = ["--protocol", protocol, "--url", "localhost:9"]
    assert generate(where, "--prompt", "x", "--output", tmp_path / "x.png") == 1
    assert "builder serve demo" in capsys.readouterr().err


def test_a_model_that_is_not_served_says_how(where, tmp_path, capsys):
    words = ["generate", "nothing", *where, "--prompt", "x", "--output", str(tmp_path / "x.png")]
    assert builder.main(words) == 1
    assert "builder serve nothing" in capsys.readouterr().err
