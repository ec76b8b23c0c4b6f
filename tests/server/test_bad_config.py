# SPDX-License-Identifier: Apache-2.0
"""A wrong entry does not load: the load API and the log say why; the other models keep serving."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server
from tests.server.config_cases import CASES, ConfigCase
from tests.server.entries import LOADS_AT_ONCE, add_entry
from tests.server.hand_edits import EDITS
from tests.server.spoiled import write_spoiled
from tests.server.wire import PROTOCOLS, admin, connect, infer
from triton_diffusers.config.triton_fields import check_text
from triton_diffusers.errors import ConfigError

pytest_plugins = ("tests.server.small_server",)

SERVED = [case for case in CASES if case.served]
OVER_BOTH = ("unknown-dtype", "weights-cut")
TRIED = [(p, c) for c in SERVED for p in (PROTOCOLS if c.name in OVER_BOTH else PROTOCOLS[:1])]
Refusals = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def refusals(small_server: Server, shared_folder: Path) -> Refusals:
    """(protocol, case) -> the load API's error; all are tried first, two at a time."""
    repository = shared_folder / "repository"
    for case in SERVED:
        write_spoiled(shared_folder, repository, case)

    def load(key: tuple[str, str]) -> str:
        protocol, name = key
        with connect(small_server, protocol) as client:
            try:
                client.load_model(name, headers=admin(small_server, protocol))
            except InferenceServerException as error:
                return str(error.message())
        return "loaded"

    keys = [(protocol, case.name) for protocol, case in TRIED]
    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(load, keys), strict=True))


@pytest.fixture(scope="module")
def log(small_server: Server, refusals: Refusals) -> str:
    assert small_server.log is not None
    return small_server.log.read_text()


@pytest.mark.parametrize(("protocol", "case"), TRIED, ids=lambda x: getattr(x, "name", x))
def test_load_error_says_what_to_do(refusals: Refusals, protocol: str, case: ConfigCase) -> None:
    text = refusals[protocol, case.name].partition("\n")[0]
    assert f"{case.name}: " in text
    for word in case.words:
        assert word in text
    assert "Traceback" not in refusals[protocol, case.name]


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_log_says_it_in_one_line(log: str, case: ConfigCase) -> None:
    ours = re.findall(rf'^E\d+ .*(?:model|job)\.py:\d+\] "{case.name}: (.*)$', log, re.MULTILINE)
    assert ours
    for word in case.words:
        assert word in ours[0].replace('\\"', '"')
    assert "Traceback" not in ours[0]


def test_other_models_keep_serving(small_server: Server, refusals: Refusals) -> None:
    for protocol in PROTOCOLS:
        with connect(small_server, protocol) as client:
            assert "images" in infer(client, protocol, "shapes", {"seed": 1})


def test_log_is_readable(log: str) -> None:
    loads = [line for line in log.splitlines() if "failed to load" in line]
    assert loads
    assert not [line for line in loads if "Traceback" in line]
    for noise in (
        "Loading pipeline components",
        "Loading weights",
        "safety checker",
        "torchvision",
    ):
        assert noise not in log


@pytest.fixture
def mended(small_server: Server, shared_folder: Path, refusals: Refusals) -> Iterator[str]:
    """A spoiled entry, written again with a call kwarg that its pipeline does not take."""
    call = json.dumps({"colour": "red", "height": 16, "width": 16, "num_inference_steps": 1})
    add_entry(
        shared_folder / "repository",
        "unknown-dtype",
        shared_folder / "models" / "stable-diffusion",
        *("--force", "--diffusers-call-kwargs", call),
    )
    small_server.load("unknown-dtype", timeout_s=120)
    yield "unknown-dtype"
    small_server.unload("unknown-dtype")


def test_mended_entry_loads_and_warns(small_server: Server, mended: str) -> None:
    def warnings(answer: dict[str, Any]) -> str:
        return str(json.loads(answer["info"][0])["warnings"])

    for protocol in PROTOCOLS:
        with connect(small_server, protocol) as client:
            answer = infer(client, protocol, mended, {"prompt": "a fox"})
            assert answer["images"].shape == (1, 16, 16, 3)
            assert "'colour' is not known" in warnings(answer)
    assert small_server.log is not None
    lines = small_server.log.read_text().splitlines()
    assert [line for line in lines if line.startswith("W") and "'colour' is not known" in line]


def test_hand_edits_that_triton_lets_through_do_not_load(
    small_server: Server, shared_folder: Path, refusals: Refusals
) -> None:
    """Those of tensors need diffusers, whose import takes long: tests/unit/builder has them too."""
    repository, model = shared_folder / "repository", shared_folder / "models" / "stable-diffusion"
    edits = {}
    for edit in EDITS:
        if edit.name == "default_model_filename:other":
            continue  # Triton looks for that file without end
        name = f"edit-{edit.name.replace(':', '-')}"
        config = add_entry(repository, name, model) / "config.pbtxt"
        config.write_text(edit.apply(config.read_text()))
        with suppress(ConfigError):
            if edit.passes and not check_text(config.read_text()):
                continue  # a tensor that does not fit the pipeline
        edits[name] = edit

    def load(name: str) -> str:
        try:
            small_server.load(name, timeout_s=60)
        except ServerError as error:
            return str(error)
        return "loaded"

    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        said = dict(zip(edits, pool.map(load, edits), strict=True))
    assert len(said) > 55
    wrong = {
        name: text
        for name, text in said.items()
        if text == "loaded"
        or (edits[name].passes and not all(word in text for word in edits[name].words))
    }
    assert not wrong
