# SPDX-License-Identifier: Apache-2.0
"""Random requests, heads and config.pbtxt files: each gets one answer, and the server lives on."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from builder.commands.check import check_entry_folder
from builder.tritonserver.installation import ServerError
from builder.tritonserver.server import Server, start_server
from tests.campaign.serving import ANSWER_S, Callers, Serving, serving
from tests.campaign.tally import Tally
from tests.server.entries import ENTRIES, write_entries
from tests.server.test_fuzz import ENTRIES as FUZZED
from tests.server.test_fuzz import make_request
from tests.server.wire import PROTOCOLS, infer
from triton_diffusers.errors import ConfigError

REQUESTS_A_ROUND = 40
HEADS_A_ROUND = 20
LOAD_S = 120
KEY = (1, 2)


def fuzz_requests(
    folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random
) -> None:
    """Send tensors and media of any kind to five models, and heads of any kind to Triton."""
    with serving(folder, tally, (*FUZZED, "streams")) as running:
        asking = Callers(running, tally, 0, 0)
        connections = {protocol: _connect(running, protocol) for protocol in PROTOCOLS}
        inputs = {name: connections["http"].get_model_config(name)["input"] for name in FUZZED}
        for _ in range(rounds):
            for _ in range(REQUESTS_A_ROUND):
                name, protocol = draw.choice(FUZZED), draw.choice(PROTOCOLS)
                _send(
                    tally, connections[protocol], protocol, name, make_request(draw, inputs[name])
                )
            for _ in range(HEADS_A_ROUND):
                _send_head(running.http, draw)
            tally.count("harmed")
            before = tally.exact
            asking.ask("pictures", draw.choice(PROTOCOLS), KEY)
            if tally.exact > before:
                tally.count("healed")


def _connect(running: Serving, protocol: str) -> Any:
    if protocol == "grpc":
        return tritonclient.grpc.InferenceServerClient(running.grpc)
    times = {"network_timeout": ANSWER_S, "connection_timeout": ANSWER_S}
    return tritonclient.http.InferenceServerClient(running.http, **times)


def _send(tally: Tally, client: Any, protocol: str, name: str, request: dict[str, Any]) -> None:
    tally.count("sent")
    try:
        infer(client, protocol, name, request)
    except InferenceServerException as error:
        never = re.search("deadline|timed out", str(error), re.I)
        tally.count("never" if never else "refused", str(error)[:80] if never else "")
    except Exception as error:  # a connection that is cut: nothing came
        tally.count("never", repr(error)[:80])


def _send_head(address: str, draw: random.Random) -> None:
    host, port = address.rsplit(":", 1)
    good = b"POST /v2/models/pictures/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    head = bytearray(good)
    for _ in range(draw.choice((1, 3, 30))):
        head[draw.randrange(len(head))] = draw.randrange(256)
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head)
        connection.settimeout(0.5)
        connection.recv(4096)


def fuzz_configs(
    folder: Path, tally: Tally, rounds: int, callers: int, draw: random.Random
) -> None:
    """Edit config.pbtxt at random: what `check` calls ok loads and draws, what it refuses does not.

    wrong: check and load disagree, or the entry draws another picture than before.
    """
    repository = write_entries(folder, {"pictures": ENTRIES["pictures"]})
    file = repository / "pictures" / "config.pbtxt"
    text = file.read_text()
    with start_server(repository, log=folder / "server.log") as server:
        wanted = _draw(server)
        for number in range(rounds):
            tally.count("sent")
            edit = draw.choice(EDITS)
            file.write_text(edit(text, draw))
            checked, loaded = _check(file.parent), _load(server)
            if checked is None and loaded is None and not _same(wanted, _draw_or_none(server)):
                tally.count("wrong", f"{edit.__name__} {number}: drew another picture")
            elif (checked is None) != (loaded is None):
                tally.count("wrong", f"{edit.__name__}: check {checked}, load {loaded}"[:200])
            else:
                tally.count("exact" if checked is None else "refused")
            file.write_text(text)


def _check(entry: Path) -> str | None:
    try:
        check_entry_folder(entry)
    except ConfigError as error:
        return str(error)
    return None


def _load(server: Server) -> str | None:
    try:
        server.load("pictures", LOAD_S)
    except ServerError as error:
        return str(error)
    return None


def _draw(server: Server) -> Any:
    server.load("pictures", LOAD_S)
    return _draw_or_none(server)


def _draw_or_none(server: Server) -> Any:
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    with suppress(InferenceServerException):
        return infer(client, "grpc", "pictures", {"prompt": "a fox", "seed": 1})["images"]
    return None


def _same(wanted: Any, found: Any) -> bool:
    return found is not None and bool((wanted == found).all())


def without_a_line(text: str, draw: random.Random) -> str:
    """Remove one line that says something."""
    lines = text.splitlines()
    said = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    del lines[draw.choice(said)]
    return "\n".join(lines) + "\n"


def a_line_twice(text: str, draw: random.Random) -> str:
    """Repeat one line that says something."""
    lines = text.splitlines()
    said = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    place = draw.choice(said)
    return "\n".join([*lines[: place + 1], lines[place], *lines[place + 1 :]]) + "\n"


def another_number(text: str, draw: random.Random) -> str:
    """Change one number."""
    found = draw.choice(list(re.finditer(r"(?<=[ \[\"])-?\d+(?=[ \]\"])", text)))
    new = draw.choice(("0", "-1", "2", "3", "1000000", "1.5", "x"))
    return text[: found.start()] + new + text[found.end() :]


def another_word(text: str, draw: random.Random) -> str:
    """Change a word of Triton's into another."""
    words = ("TYPE_STRING", "TYPE_INT64", "TYPE_FP64", "TYPE_UINT8", "KIND_AUTO", "true", "python")
    others = (*words, "KIND_CPU", "KIND_GPU", "KIND_MODEL", "false", "TYPE_FP16", "onnxruntime")
    present = [word for word in words if word in text]
    found = draw.choice(list(re.finditer(rf"\b{draw.choice(present)}\b", text)))
    return text[: found.start()] + draw.choice(others) + text[found.end() :]


FIELDS = (
    "dynamic_batching { }",
    "dynamic_batching { max_queue_delay_microseconds: 100 }",
    "sequence_batching { max_sequence_idle_microseconds: 5000000 }",
    "response_cache { enable: true }",
    "version_policy { latest { num_versions: 1 } }",
    "version_policy { specific { versions: [ 2 ] } }",
    'default_model_filename: "other.py"',
    'default_model_filename: "model.py"',
    'model_warmup [ { name: "w" batch_size: 1 } ]',
    "optimization { priority: PRIORITY_MAX }",
    "optimization { input_pinned_memory { enable: false } }",
    "model_transaction_policy { decoupled: true }",
    "model_transaction_policy { decoupled: false }",
    'platform: "ensemble"',
    'runtime: "x.so"',
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/nowhere.tar.gz" } }',
    'parameters { key: "dtipe" value { string_value: "float32" } }',
    "max_batch_size: 4",
    'metric_tags { key: "a" value: "b" }',
    "instance_group [ { count: 0 kind: KIND_CPU } ]",
    'cc_model_filenames { key: "a" value: "b" }',
    "model_operations { op_library_filename: [ 'x.so' ] }",
    "parameters { }",
)


def a_field_more(text: str, draw: random.Random) -> str:
    """Add a field of Triton's."""
    return text + draw.choice(FIELDS) + "\n"


EDITS: tuple[Callable[[str, random.Random], str], ...] = (
    without_a_line,
    a_line_twice,
    another_number,
    another_word,
    a_field_more,
)
