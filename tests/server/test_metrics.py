# SPDX-License-Identifier: Apache-2.0
"""Metrics, the line in the log and `info` of requests to a real server: all say the same."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from builder.tritonserver.server import Server, start_server
from tests import tiny
from tests.server.entries import SMALL, add_entry, load_all
from tests.server.wire import PROTOCOLS, Pending, connect, infer, post, refusal
from tests.waiting import wait_for as until
from triton_diffusers.running.record import ALL_OUTCOMES
from triton_diffusers.serving.metrics import FAMILIES, PREFIX

FAULTY = Path(__file__).with_name("faulty.py")
SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
LOGGED = re.compile(r'\] (?P<text>"(?:[^"\\]|\\.)*")$')
PROMPT = "a fox that no log may name"
GOOD = {"prompt": PROMPT, "seed": 1}
ENTRIES: dict[str, tuple[str, ...]] = {
    "faulty": ("--max-queue", "2", "--stuck-after-s", "2"),
    "together": ("--request-batching",),
    "lanes": ("--step-batching",),
    "plain": (),
    "twice": ("--instances", "2", "--no-log-requests"),
}
BOTH = pytest.mark.parametrize("protocol", PROTOCOLS)
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("metrics")
    model = tiny.save("stable-diffusion", made)
    call = ("--diffusers-call-kwargs", json.dumps(SMALL), "--custom-pipeline", str(FAULTY))
    for name, options in ENTRIES.items():
        add_entry(made / "repository", name, model, *call, *options)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with start_server(
        folder / "repository", log=folder / "server.log", exit_timeout_s=0
    ) as running:
        load_all(running, list(ENTRIES))
        yield running


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server: Server) -> Series:
    """Our series: (name without prefix, labels) -> value."""
    with _DIRECT.open(f"http://{server.metrics_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for sample in SAMPLE.finditer(text):
        if sample["name"].startswith(PREFIX):
            key = (sample["name"].removeprefix(PREFIX), frozenset(LABEL.findall(sample["labels"])))
            found[key] = float(sample["value"])
    return found


def value(series: Series, name: str, **labels: str) -> float:
    """The sum of the series that have these labels."""
    wanted = set(labels.items())
    return sum(v for (n, own), v in series.items() if n == name and wanted <= own)


def outcomes(server: Server, model: str) -> dict[str, float]:
    series = scrape(server)
    return {o: value(series, "requests_total", model=model, outcome=o) for o in ALL_OUTCOMES}


def lines(server: Server, model: str) -> list[dict[str, Any]]:
    """The records in the log, oldest first."""
    assert server.log is not None
    found = []
    for line in server.log.read_text().splitlines():
        if match := LOGGED.search(line):
            name, _, text = str(json.loads(match["text"])).partition(": ")
            if name == model and text.startswith("{"):
                found.append(json.loads(text))
    return found


def line_of(server: Server, model: str, request_id: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [r for r in lines(server, model) if r["request_id"] == request_id]

    assert until(found)
    (record,) = found()
    return record


def assert_free(server: Server, model: str) -> None:
    def is_free() -> bool:
        series = scrape(server)
        return not any(value(series, name, model=model) for name in ("queue_length", "running"))

    assert until(is_free)


FAULTS: dict[str, dict[str, Any]] = {
    "invalid": GOOD | {"height": -1},
    "out_of_memory": GOOD | {"prompt": f"{PROMPT} memory"},
    "error": GOOD | {"prompt": f"{PROMPT} error"},
}


@BOTH
@pytest.mark.parametrize("outcome", [*FAULTS, "timeout"])
def test_a_request_that_fails_is_counted_once(server: Server, protocol: str, outcome: str) -> None:
    request_id = f"{protocol}-{outcome}"
    inputs = FAULTS.get(outcome, GOOD | {"num_inference_steps": 900})
    options = {"timeout": 300_000} if outcome == "timeout" else {}
    before = outcomes(server, "faulty")
    with connect(server, protocol) as client:
        refusal(client, protocol, "faulty", inputs, request_id=request_id, **options)
    record = line_of(server, "faulty", request_id)
    assert record["outcome"] == outcome
    assert record["outputs"] == 0
    assert 0 < record["seconds"]["total"] < 20
    assert (record["steps"] > 0) == (outcome == "timeout")
    assert until(lambda: outcomes(server, "faulty") == before | {outcome: before[outcome] + 1})
    assert_free(server, "faulty")


@BOTH
@pytest.mark.parametrize("entry", ["plain", "together", "lanes"])
def test_a_deadline_answers_while_a_call_makes_no_step(
    server: Server, protocol: str, entry: str
) -> None:
    request_id = f"{protocol}-{entry}-late"

    def late() -> float:
        return value(scrape(server), "late_results_total", model=entry)

    served = outcomes(server, entry)["ok"]
    with connect(server, protocol) as client:
        infer(client, protocol, entry, GOOD)  # a first call's step may take longer
    assert until(lambda: outcomes(server, entry)["ok"] == served + 1)
    before, answered = late(), outcomes(server, entry)
    inputs = GOOD | {"prompt": f"{PROMPT} linger"}
    with connect(server, protocol) as client:
        _, message = refusal(
            client, protocol, entry, inputs, timeout=1_500_000, request_id=request_id
        )
        assert "timeout of 1.5 s is over" in message
        told = infer(client, protocol, entry, GOOD, parameters={"probe": True})["info"][0]
        assert json.loads(told)["running"] == 1  # the call goes on and holds its place
        assert late() == before
        assert "images" in infer(client, protocol, entry, GOOD)
    assert until(lambda: late() == before + 1)
    assert line_of(server, entry, request_id)["outcome"] == "timeout"
    now = answered | {"ok": answered["ok"] + 1, "timeout": answered["timeout"] + 1}
    assert until(lambda: outcomes(server, entry) == now)


NOT_UTF8 = {
    "id": b'{"id": "\xff", "inputs": [%s]}',
    "parameter": b'{"id": "a", "parameters": {"foo": "\xff"}, "inputs": [%s]}',
}
PROMPT_TENSOR = b'{"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["x"]}'


@pytest.mark.parametrize("what", list(NOT_UTF8))
def test_what_is_not_utf8_is_refused_counted_and_logged(server: Server, what: str) -> None:
    def refused() -> tuple[float, int]:
        written = [record for record in lines(server, "plain") if record["outcome"] == "invalid"]
        return outcomes(server, "plain")["invalid"], len(written)

    counted, written = refused()
    status, text = post(server, "models/plain/infer", NOT_UTF8[what] % PROMPT_TENSOR)
    assert (status, "not UTF-8" in text, "Traceback" in text) == (400, True, False)
    assert until(lambda: refused() == (counted + 1, written + 1))
    for protocol in PROTOCOLS:
        with connect(server, protocol) as client:
            assert "images" in infer(client, protocol, "plain", GOOD)


def test_grpc_itself_refuses_what_is_not_utf8(server: Server) -> None:
    message = b"\x0a\x05plain\x1a\x01\xff"  # model_name, id
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError):
            call(message, timeout=20)
    with connect(server, "grpc") as client:
        assert "images" in infer(client, "grpc", "plain", GOOD)


@BOTH
def test_a_request_that_is_served_is_measured(server: Server, protocol: str) -> None:
    request_id = f"{protocol}-served"
    before = scrape(server)
    inputs = GOOD | {"num_inference_steps": 3, "num_images_per_prompt": 2}
    with connect(server, protocol) as client:
        outputs = infer(client, protocol, "faulty", inputs, request_id=request_id)
    info, record = json.loads(outputs["info"][0]), line_of(server, "faulty", request_id)
    assert record["outcome"] == "ok"
    assert record["arguments"]["height"] == 16
    assert record["seeds"] == outputs["seed"].tolist()
    assert record["input_bytes"] == len(PROMPT) + 3 * 8
    assert record["output_bytes"] > outputs["images"].nbytes
    for name in ("request_id", "steps", "outputs", "batch", "queue_length", "peak_memory_bytes"):
        assert info[name] == record[name]
    assert (record["steps"], record["outputs"], record["batch"]) == (3, 2, 1)
    assert record["peak_memory_bytes"] > 2**27  # on a CPU that of the process, torch included
    assert info["seconds"].items() <= record["seconds"].items()
    seconds = dict(record["seconds"])
    total, whole = seconds.pop("total"), seconds.pop("pipeline")
    parts = [seconds[name] for name in ("encode_prompt", "denoise", "decode_latents")]
    assert abs(sum(parts) - whole) < 0.001
    assert total * 0.8 - 0.02 < sum(seconds.values()) < total + 0.001

    def grown(name: str, **labels: str) -> float:
        now = value(scrape(server), name, model="faulty", **labels)
        return round(now - value(before, name, model="faulty", **labels), 5)

    assert until(lambda: grown("requests_total", outcome="ok") == 1)
    assert (grown("steps_total"), grown("outputs_total")) == (3, 2)
    assert grown("request_seconds_count") == grown("batch_size_sum") == 1
    assert grown("request_seconds_sum") == pytest.approx(total, abs=1e-4)
    assert grown("stage_seconds_total") == pytest.approx(sum(seconds.values()), abs=1e-4)
    denoise = grown("stage_seconds_total", stage="denoise")
    assert denoise == pytest.approx(seconds["denoise"], abs=1e-4)
    assert grown("stage_seconds_total", stage="pipeline") == 0
    series = scrape(server)
    assert value(series, "peak_memory_bytes", model="faulty") == record["peak_memory_bytes"]
    speed = value(series, "steps_per_second", model="faulty")
    assert speed == pytest.approx(3 / seconds["denoise"], rel=0.01)
    assert_free(server, "faulty")


@BOTH
def test_pictures_of_nan_are_counted(server: Server, protocol: str) -> None:
    before = value(scrape(server), "nan_requests_total")
    with connect(server, protocol) as client:
        inputs = GOOD | {"prompt": "nan"}
        infer(client, protocol, "faulty", inputs, request_id=f"{protocol}-nan")
    assert line_of(server, "faulty", f"{protocol}-nan")["nan"] is True
    assert until(lambda: value(scrape(server), "nan_requests_total") == before + 1)


@BOTH
def test_a_full_queue_and_cancelled_requests_are_counted(server: Server, protocol: str) -> None:
    before = outcomes(server, "faulty")
    with connect(server, protocol) as client, connect(server, "grpc") as grpc:
        long = GOOD | {"num_inference_steps": 900}
        first = Pending(grpc, "faulty", long)
        assert until(lambda: value(scrape(server), "running", model="faulty") == 1)
        pending = [first, *(Pending(grpc, "faulty", long) for _ in range(2))]
        assert until(lambda: value(scrape(server), "queue_length", model="faulty") == 2)
        request_id = f"{protocol}-busy"
        refusal(client, protocol, "faulty", GOOD, request_id=request_id)
        assert line_of(server, "faulty", request_id)["queue_length"] == 2
        for each in pending:
            each.cancel()
        for each in pending:
            each.answer()
    wanted = before | {"busy": before["busy"] + 1, "cancelled": before["cancelled"] + 3}
    assert until(lambda: outcomes(server, "faulty") == wanted)
    assert_free(server, "faulty")


@BOTH
def test_a_probe_is_no_request(server: Server, protocol: str) -> None:
    before, count = outcomes(server, "faulty"), len(lines(server, "faulty"))
    with connect(server, protocol) as client:
        infer(client, protocol, "faulty", GOOD, parameters={"probe": True})
    time.sleep(1)
    assert outcomes(server, "faulty") == before
    assert len(lines(server, "faulty")) == count


def _many(server: Server, model: str, count: int = 16, steps: int = 4) -> None:
    def ask(number: int) -> Any:
        protocol = PROTOCOLS[number % 2]
        with connect(server, protocol) as client:
            inputs = {"prompt": PROMPT, "seed": number, "num_inference_steps": steps}
            return infer(client, protocol, model, inputs)["images"]

    with ThreadPoolExecutor(8) as pool:
        assert all(images.any() for images in pool.map(ask, range(count)))
    assert until(lambda: outcomes(server, model)["ok"] >= count)


def test_the_size_of_batches_is_told(server: Server) -> None:
    before = scrape(server)
    _many(server, "together")

    def grown(name: str) -> float:
        now = value(scrape(server), name, model="together")
        return now - value(before, name, model="together")

    assert until(lambda: grown("batch_size_count") == 16)
    assert grown("batch_size_sum") > 16
    assert max(record["batch"] for record in lines(server, "together")) > 1


def test_forwards_that_calls_share_are_told(server: Server) -> None:
    _many(server, "lanes")
    series = scrape(server)
    by_calls = {
        int(dict(labels)["calls"]): count
        for (name, labels), count in series.items()
        if name == "forwards_total"
    }
    assert max(by_calls) > 1
    assert all(count > 0 for count in by_calls.values())


def test_instances_have_series_of_their_own(server: Server) -> None:
    _many(server, "twice", steps=20)
    series = scrape(server)
    names = {dict(labels)["model_instance"] for _, labels in series if ("model", "twice") in labels}
    assert len(names) == 2
    each = [value(series, "requests_total", model_instance=name, outcome="ok") for name in names]
    assert min(each) > 0
    assert sum(each) == 16
    assert_free(server, "twice")


def test_the_log_can_do_without(server: Server) -> None:
    before = outcomes(server, "twice")["ok"]
    _many(server, "twice", count=2, steps=1)
    assert until(lambda: outcomes(server, "twice")["ok"] == before + 2)
    assert lines(server, "twice") == []


def test_a_stuck_call_and_loading_again(server: Server) -> None:
    protocol = "grpc"

    def stuck() -> float:
        return outcomes(server, "faulty")["stuck"]

    before, stuck_before = outcomes(server, "faulty")["ok"], stuck()
    with connect(server, protocol) as client:
        refusal(client, protocol, "faulty", GOOD | {"prompt": "stuck"})
        refusal(client, protocol, "faulty", GOOD)
    assert until(lambda: stuck() == stuck_before + 2)
    server.unload("faulty")
    assert_free(server, "faulty")
    server.load("faulty", timeout_s=120)
    with connect(server, protocol) as client:
        infer(client, protocol, "faulty", GOOD)
    assert until(lambda: outcomes(server, "faulty")["ok"] == before + 1)


def test_loading_again_in_place_keeps_the_series(server: Server) -> None:
    before = outcomes(server, "twice")["ok"]
    for number in range(1, 3):
        server.load("twice", timeout_s=120)
        with connect(server, "grpc") as client:
            assert "images" in infer(client, "grpc", "twice", GOOD)
        assert until(lambda number=number: outcomes(server, "twice")["ok"] == before + number)
    assert_free(server, "twice")


def test_every_metric_is_there_and_no_prompt_in_the_log(server: Server) -> None:
    names = {name for name, _ in scrape(server)}
    for family in FAMILIES:
        assert family.name + ("_sum" if family.kind == "histogram" else "") in names
    assert server.log is not None
    text = server.log.read_text()
    assert PROMPT not in text
    assert "Signal (11)" not in text
