# SPDX-License-Identifier: Apache-2.0
"""Three hundred requests while clients leave, err and ask too much, and models are loaded again."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builder.tritonserver.server import Server, start_server
from tests import tiny
from tests.server.entries import SMALL, add_entry, load_all
from tests.server.wire import PROTOCOLS, TIMEOUT_S, connect, infer, make_inputs

ENTRIES: dict[str, tuple[str, ...]] = {
    "alone": (),
    "together": ("--request-batching", "--max-batch", "4"),
    "lanes": ("--step-batching", "--max-in-flight", "4"),
}
REQUESTS = 300
CALLERS = 12
LOADS = 3
SEEDS = 6
STEPS = (1, 2, 3, 5)
KINDS = {"good": 10, "bad": 2, "too much": 2, "cancel": 3, "disconnect": 2, "hang up": 1, "late": 2}
"""What a caller does -> how often."""
LOGGED = re.compile(r'\] (?P<text>"(?:[^"\\]|\\.)*")$')
GONE = re.compile(r"not ready|unknown model|being unloaded|not found|no versions", re.I)
"""How requests are refused while their model is unloaded or loads."""


@dataclass(frozen=True)
class Plan:
    """What one caller does."""

    number: int
    kind: str
    entry: str
    protocol: str
    seed: int
    steps: int
    after_s: float

    @property
    def inputs(self) -> dict[str, Any]:
        """What it sends."""
        changed = {"bad": {"num_inference_steps": -1}, "too much": {"num_inference_steps": 2000}}
        inputs = {"prompt": f"a fox {self.seed}", "seed": self.seed}
        return inputs | {"num_inference_steps": self.steps} | changed.get(self.kind, {})


def make_plans() -> list[Plan]:
    draw = random.Random(4)
    return [
        Plan(
            number,
            draw.choices(list(KINDS), list(KINDS.values()))[0],
            draw.choice(list(ENTRIES)),
            draw.choice(PROTOCOLS),
            draw.randrange(SEEDS),
            draw.choice(STEPS),
            draw.uniform(0, 0.1),
        )
        for number in range(REQUESTS)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chaos")
    model = tiny.save("stable-diffusion", made)
    for name, options in ENTRIES.items():
        call = ("--diffusers-call-kwargs", json.dumps(SMALL))
        add_entry(made / "repository", name, model, *call, *options)
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    off = ["--allow-metrics=false"]  # entries serve as well without
    with start_server(folder / "repository", log=folder / "server.log", extra=off) as running:
        load_all(running, list(ENTRIES))
        yield running


def ask(server: Server, plan: Plan) -> Any:
    """Do as planned; return the outputs, the error, or None where the caller left."""
    time.sleep(6 * plan.after_s)
    if plan.kind == "hang up":
        return _hang_up(server, plan)
    protocol = "grpc" if plan.kind in ("cancel", "disconnect") else plan.protocol
    options: dict[str, Any] = {"request_id": str(plan.number)}
    if plan.kind == "late":
        options["timeout"] = int(plan.after_s * 1e6) + 1
    with connect(server, protocol) as client:
        try:
            if protocol == plan.protocol and plan.kind not in ("cancel", "disconnect"):
                return infer(client, protocol, plan.entry, plan.inputs, **options)
            return _leave(client, plan, options)
        except InferenceServerException as error:
            if GONE.search(str(error)):
                time.sleep(0.2)  # or most requests would meet a model that is gone
            return error


def _leave(client: Any, plan: Plan, options: dict[str, Any]) -> None:
    answers: list[Any] = []
    context = client.async_infer(
        plan.entry,
        make_inputs("grpc", plan.inputs),
        lambda result, error: answers.append(error or result),
        **options,
    )
    time.sleep(plan.after_s)
    if plan.kind == "cancel":
        context.cancel()
        end = time.monotonic() + TIMEOUT_S
        while not answers and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(answers) == 1


def _hang_up(server: Server, plan: Plan) -> None:
    body = json.dumps(plan.inputs).encode()
    path = f"/v2/models/{plan.entry}/generate"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.http_url.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(plan.after_s)


def test_every_accepted_request_is_answered_once(server: Server, folder: Path) -> None:
    plans, done = make_plans(), threading.Event()
    wanted = {(seed, steps): _draw(server, seed, steps) for seed in range(SEEDS) for steps in STEPS}
    regions: set[str] = set()
    loaded: list[str] = []

    def load_again() -> None:
        for turn in range(LOADS):
            if done.wait(1):
                return
            regions.update(stub.region for stub in server.stubs())
            name = list(ENTRIES)[turn % len(ENTRIES)]
            server.unload(name)
            server.load(name, timeout_s=120)
            loaded.append(name)

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        loading = pool.submit(load_again)
        found = list(pool.map(lambda plan: ask(server, plan), plans, timeout=600))
        done.set()
        loading.result(180)
    outcomes = Counter(
        (plan.kind, _outcome(plan, result, wanted))
        for plan, result in zip(plans, found, strict=True)
    )
    print(f"{dict(outcomes)}, loaded again: {loaded}")
    assert outcomes["good", "picture"] > 50, outcomes
    assert loaded
    _assert_allowed(outcomes)
    for name in ENTRIES:  # the server lives on, and nothing is left in a queue
        with connect(server, "grpc") as client:
            assert infer(client, "grpc", name, plans[0].inputs | {"num_inference_steps": 1})
    regions.update(stub.region for stub in server.stubs())
    server.stop()
    _assert_logged_once(folder / "server.log", plans, found)
    assert not [region for region in regions if Path("/dev/shm", region.lstrip("/")).exists()]


def _draw(server: Server, seed: int, steps: int) -> np.ndarray:
    with connect(server, "grpc") as client:
        inputs = {"prompt": f"a fox {seed}", "seed": seed, "num_inference_steps": steps}
        return infer(client, "grpc", "alone", inputs)["images"]


def _outcome(plan: Plan, result: Any, wanted: dict[tuple[int, int], np.ndarray]) -> str:
    if result is None:
        return "left"
    if isinstance(result, InferenceServerException):
        text = str(result)
        if GONE.search(text):
            return "gone"
        known = {"at least 1": "refused", "at most": "refused", "timeout": "late"}
        known |= {"queue is full": "busy", "cancel": "cancelled"}
        return next((name for words, name in known.items() if words in text.lower()), text)
    off = np.abs(result["images"].astype(int) - wanted[plan.seed, plan.steps]).max()
    assert off <= (0 if plan.entry == "alone" else 1), plan
    return "picture"


def _assert_allowed(outcomes: Counter[tuple[str, str]]) -> None:
    allowed = {
        "good": {"picture", "gone", "busy"},
        "bad": {"refused", "gone", "busy"},
        "too much": {"refused", "gone", "busy"},
        "cancel": {"left"},
        "disconnect": {"left"},
        "hang up": {"left"},
        "late": {"late", "picture", "gone", "busy"},
    }
    wrong = {key: count for key, count in outcomes.items() if key[1] not in allowed[key[0]]}
    assert not wrong
    assert outcomes["bad", "refused"] > 5
    assert outcomes["too much", "refused"] > 5


def _assert_logged_once(log: Path, plans: list[Plan], found: list[Any]) -> None:
    """The log has one line for each request that a model took: whatever became of it."""
    lines: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        match = LOGGED.search(line)
        text = json.loads(match["text"]) if match else ""
        if (start := text.find('{"')) >= 0 and '"outcome"' in text:
            lines[json.loads(text[start:])["request_id"]] += 1
    lines.pop("", None)
    assert max(lines.values()) == 1
    for plan, result in zip(plans, found, strict=True):
        served = result is not None and not isinstance(result, InferenceServerException)
        if served:
            assert lines[str(plan.number)] == 1, plan
