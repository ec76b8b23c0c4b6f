# SPDX-License-Identifier: Apache-2.0
"""`builder serve` while processes are killed: what was served is served again, callers are told."""

import http.client
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from builder.tritonserver.server import start_server
from builder.tritonserver.stubs import REGION
from tests.server.builder_serve import (
    CONFIG,
    WORKING,
    Serving,
    add_model,
    group_exists,
    infer,
    metrics,
    wait_until,
)
from tests.server.builder_serve import _logs_in_tmp_path as _logs_in_tmp_path
from tests.server.builder_serve import repository as repository
from tests.server.builder_serve import serve as serve


def starting(code: str, model: str = WORKING) -> str:
    """A model that runs some code when it loads; `here` is its entry."""
    lines = ("import os, signal, time", "here = args['model_repository']", *code.splitlines())
    body = "".join(f"        {line}\n" for line in lines)
    return model.replace(
        "    def execute", f"    def initialize(self, args):\n{body}    def execute", 1
    )


SLOW = starting("time.sleep(6)")
REFUSING = starting("if os.path.exists(here + '/no'): raise RuntimeError('not now')")
DEADLY = starting(
    """if not os.path.exists(here + "/ok"):
    os.kill(os.getppid(), signal.SIGABRT)
    time.sleep(60)"""
)
MEETING = starting(
    """open(here + "/here", "w").close()
for _ in range(100):
    if all(os.path.exists(here + f"/../{name}/here") for name in ("a", "b")): break
    time.sleep(0.1)
else:
    raise RuntimeError("nobody came")"""
)
COUNTED = starting(
    """from triton_diffusers.serving.metrics import EngineState, Metrics
labels = {"model": args["model_name"], "version": "1", "model_instance": "i"}
self.metrics = Metrics(pb_utils.MetricFamily, labels, lambda: EngineState(0, 0), print)"""
)


def kill(serving: Serving, name: str) -> int:
    """Kill a process of a model; return its id."""
    victim = next(stub for stub in serving.stubs() if stub.model == name)
    os.kill(victim.pid, signal.SIGKILL)
    return victim.pid


def regions(serving: Serving) -> tuple[str, set[str]]:
    """How the names of a server's shared memory begin, and those in use."""
    used = {stub.region_name for stub in serving.stubs()}
    return REGION + next(iter(used)).removeprefix(REGION).partition("_")[0], used


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def left(prefix: str) -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"{prefix}*")}


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_server_that_ends_is_started_again_with_what_was_served(serve, repository, number):
    add_model(repository, "third", COUNTED)
    serving = serve("first", "second", "--repository", repository)
    serving.wait_until_ready()
    models = "v2/repository/models"
    assert serving.administer(f"{models}/third/load")[0] == 200
    assert serving.administer(f"{models}/second/unload")[0] == 200
    time.sleep(4)  # it is asked every two seconds
    old, prefix = serving.server_pid, regions(serving)[0]
    os.kill(old, number)
    told = f"tritonserver ended by itself: signal {number.value} .{number.name}.*starting it again"
    serving.wait_for(told)
    serving.wait_for("ready again: (first, third|third, first)")
    assert not group_exists(old)
    serving.find_server()
    assert {stub.model for stub in serving.stubs()} == {"first", "third"}
    assert (infer(serving, "first"), infer(serving, "third")) == (200, 200)
    wait_until(lambda: left(prefix) == regions(serving)[1])
    assert re.search(r"restarts_total\{.*\} 1$", metrics(serving, "triton_diffusers_server"))
    kill(serving, "third")
    serving.wait_for("ready again: third")
    assert re.search(r"\} 1$", metrics(serving, "triton_diffusers_reloads"), re.MULTILINE)
    assert re.search(r"restarts_total\{.*\} 1$", metrics(serving, "triton_diffusers_server"))


def test_a_request_that_ends_the_server_takes_nothing_away(serve, repository):
    config = CONFIG + 'input [ {{ name: "x" data_type: TYPE_INT64 dims: [ -1 ] optional: true }} ]'
    add_model(repository, "third", config=config)
    serving = serve("third", "first", "--repository", repository)
    serving.wait_until_ready()
    lie = {"name": "x", "datatype": "INT64", "shape": [2**62], "data": [1]}
    with pytest.raises((OSError, http.client.HTTPException)):
        serving.ask("v2/models/third/infer", {"inputs": [lie]})
    serving.wait_for(r"ended by itself: signal \d+ \(SIG\w+\); its last words: .*starting it again")
    serving.wait_for("ready again: (first, third|third, first)")
    assert (infer(serving, "first"), infer(serving, "third")) == (200, 200)


def test_a_server_that_ends_while_a_model_loads_is_not_waited_for(serve, repository):
    add_model(repository, "third", DEADLY)
    serving = serve("first", "third", "--repository", repository)
    serving.wait_for(r"ended by itself: signal 6 \(SIGABRT\)")
    (repository / "third" / "ok").touch()
    serving.wait_until_ready()
    assert (infer(serving, "first"), infer(serving, "third")) == (200, 200)


def test_a_model_that_ends_the_server_each_time_is_given_up(serve, repository):
    add_model(repository, "third", DEADLY)
    serving = serve("third", "--repository", repository)
    serving.find_server_when_there()
    assert serving.wait() == 1
    assert "error: model 'third' did not load: tritonserver ended each time" in serving.output
    assert not group_exists(serving.server_pid)


def test_a_model_that_does_not_load_again_is_tried_until_it_does(serve, repository):
    add_model(repository, "third", REFUSING)
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    refusal = repository / "third" / "no"
    for mended in (True, False):
        refusal.touch()
        kill(serving, "third")
        for pause in (1, 2) if mended else (1, 2, 4):  # an unload lands in a pause
            serving.wait_for(f"'third' did not load: .*not now; trying again in {pause} s")
        status, text = serving.ask("v2/models/third/infer", {"inputs": []})
        assert (status, "being loaded again" in text) == (503, True)
        if mended:
            refusal.unlink()
            serving.wait_for("ready again: third")
            assert infer(serving, "third") == 200
    assert serving.administer("v2/repository/models/third/unload")[0] == 200
    serving.wait_for("'third' was unloaded: it is not loaded again")
    assert infer(serving, "third") == 404


def test_callers_hear_that_a_model_is_away_and_not_that_there_is_none(serve, repository):
    add_model(repository, "third", SLOW)
    serving = serve("third", "first", "--repository", repository)
    serving.wait_until_ready()
    found: Counter[int] = Counter()
    prefix, before = regions(serving)
    kill(serving, "third")
    serving.wait_for("'third' died; loading it again")
    time.sleep(1)  # one that meets the dead process waits for seconds
    while found[200] < 3:
        found[infer(serving, "third")] += 1
        assert infer(serving, "first") == 200
        time.sleep(0.02)
    assert set(found) <= {500, 503, 200}  # 500: until it is noticed
    assert found[503] > 5
    serving.wait_for("ready again: third")
    wait_until(lambda: left(prefix) == regions(serving)[1])
    assert len(before) == len(left(prefix)) == 2


def test_models_load_side_by_side(serve, tmp_path):
    for name in ("a", "b"):
        add_model(tmp_path / "models", name, MEETING)
    serving = serve("--repository", tmp_path / "models")
    serving.wait_for("ready: a, b ")


def test_nothing_outlives_a_builder_that_is_killed(serve, repository):
    serving = serve("--repository", repository)
    serving.wait_until_ready()
    prefix, used = regions(serving)
    key = Path(f"/dev/shm/triton-admin-key-{serving.http.rpartition(':')[2]}")
    assert key.exists()
    secret = key.read_text().strip().encode()
    shown = [f for f in Path("/proc").glob("[0-9]*/cmdline") if secret in _read(f)]
    assert not shown  # nor in that of the watch
    assert left(prefix) == used
    serving.process.kill()
    wait_until(lambda: not group_exists(serving.server_pid))
    wait_until(lambda: not left(prefix) and not key.exists())


def test_the_process_of_another_model_that_died_does_not_fail_a_load(tmp_path):
    add_model(tmp_path / "models", "first")
    add_model(tmp_path / "models", "slow", starting("time.sleep(6)"))
    with start_server(tmp_path / "models", ["first"], log=tmp_path / "log") as server:
        (stub,) = server.stubs()
        killer = threading.Timer(1, os.kill, (stub.pid, signal.SIGKILL))
        killer.start()
        server.load("slow")
        assert stub.pid in server.dead_stubs()  # it lay there all the time


def test_every_kill_heals_also_while_loading(serve, repository):
    """Processes are killed at random moments while many call; afterwards everybody is served."""
    draw = random.Random(11)
    for name in ("third", "fourth"):
        add_model(repository, name, starting("time.sleep(1)"))
    names = ("first", "third", "fourth")
    serving = serve(*names, "--repository", repository)
    serving.wait_until_ready()
    prefix = regions(serving)[0]
    stop, statuses = threading.Event(), Counter()

    def call(number: int) -> None:
        chosen = random.Random(number)
        while not stop.is_set():
            try:
                statuses[infer(serving, chosen.choice(names))] += 1
            except OSError:
                statuses["closed"] += 1
                time.sleep(0.05)

    callers = [threading.Thread(target=call, args=[n]) for n in range(8)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(6):
            time.sleep(draw.uniform(0, 2.5))
            serving.find_server_when_there()
            if found := serving.stubs():
                os.kill(draw.choice(found).pid, signal.SIGKILL)

        def is_healed() -> bool:
            try:
                return all(infer(serving, name) == 200 for name in names)
            except OSError:
                return False

        time.sleep(3)
        wait_until(is_healed)
    finally:
        stop.set()
        for caller in callers:
            caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert statuses[200] > 20
    assert set(statuses) <= {200, 404, 500, 503, "closed"}
    serving.find_server()
    wait_until(lambda: left(prefix) == regions(serving)[1])
    assert len(left(prefix)) == 3
