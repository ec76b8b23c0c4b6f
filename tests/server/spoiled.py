# SPDX-License-Identifier: Apache-2.0
"""Entries of the configuration cases on disk, and loading one as Triton would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from builder.entries.config_pbtxt import parse_config
from tests import tiny
from tests.server.config_cases import ConfigCase
from tests.server.entries import add_entry


def write_spoiled(folder: Path, repository: Path, case: ConfigCase) -> Path:
    """Write a case's model below `folder` and its entry into the repository; return the entry."""
    original = folder / "models" / case.tiny
    if not original.exists():
        tiny.save(case.tiny, original.parent)
    model = folder / "spoiled" / case.name
    shutil.copytree(original, model)
    entry = add_entry(repository, case.name, model, *case.options)
    case.spoil(entry, model)
    return entry


def load_arguments(entry: Path) -> dict[str, str]:
    """What Triton passes to `initialize` for an entry on a CPU."""
    message = parse_config((entry / "config.pbtxt").read_text())
    return {
        "model_config": json.dumps(MessageToDict(message, preserving_proto_field_name=True)),
        "model_repository": str(entry),
        "model_instance_kind": "CPU",
        "model_name": entry.name,
    }
