# SPDX-License-Identifier: Apache-2.0
"""An entry loaded and called as its stub does, in a fresh process, without a tritonserver."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format

import builder.main
from tests.parity.compare import differences
from tests.parity.fresh import ChildError, call_fresh
from tests.parity.plain import PlainCall, class_of
from tests.parity.run import STATE_SEED, Outcome, ask_plain, disturbing, entry_options


def check_in_process(name: str, call: PlainCall, folder: Path) -> Outcome:
    """Compare as `run.check` does: a request, one with another seed, the first one again."""
    outcome = Outcome(name, call, call.pipeline_class or class_of(call.folder))
    expected = ask_plain(outcome)
    try:
        answers = call_fresh(_answer, name, call, list(entry_options(call)), folder)
    except ChildError as error:
        text = outcome.plain_error.partition(": ")[2]
        if not text or text not in str(error):
            outcome.problems.append(str(error))
        return outcome
    if outcome.plain_error:
        outcome.problems.append(f"no error, but plain: {outcome.plain_error}")
    for which, arrays in zip(("first", "again"), answers, strict=True):
        outcome.problems += [f"{which}: {line}" for line in differences(expected, arrays)]
        if arrays["seed"].tolist() != list(call.seeds):
            outcome.problems.append(f"{which}: seed {arrays['seed']} instead of {call.seeds}")
    return outcome


def _answer(
    name: str, call: PlainCall, options: list[str], folder: Path
) -> list[dict[str, np.ndarray]]:
    """Write and load the entry; return what two equal requests get, another one between them."""
    import torch
    from tritonclient.grpc import model_config_pb2

    from triton_diffusers.client.entry import read_entry
    from triton_diffusers.client.request import build_inputs
    from triton_diffusers.loading.entry import load_entry

    torch.set_num_threads(call.threads)
    argv = ["add-model", str(call.folder), "--name", name, "--repository", str(folder), *options]
    assert builder.main.main(argv) == 0
    config = model_config_pb2.ModelConfig()
    text_format.Parse((folder / name / "config.pbtxt").read_text(), config)
    told = json_format.MessageToDict(config, preserving_proto_field_name=True)
    loaded = load_entry({"model_config": json.dumps(told), "model_repository": str(folder / name)})
    entry, (seed,) = read_entry(config), call.seeds

    def ask(inputs: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
        from triton_diffusers.calls.arguments import read_call
        from triton_diffusers.running.run import run_call

        request = read_call(build_inputs(entry, {**inputs, "seed": seed}), loaded)
        return run_call(request, loaded, lambda done, total, *pictures: None)

    first = ask(call.inputs, seed)
    with contextlib.suppress(Exception):  # no trace of it may be left either
        ask(disturbing(call), seed + STATE_SEED)
    return [first, ask(call.inputs, seed)]
