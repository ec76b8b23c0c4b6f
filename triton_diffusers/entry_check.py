# SPDX-License-Identifier: Apache-2.0
"""An entry's inputs and outputs against the installed pipeline class, at load and by `check`."""

from collections.abc import Mapping
from typing import Any

from triton_diffusers.config import ServeConfig
from triton_diffusers.signature import entry_inputs, entry_outputs, read_signature


def check_entry(
    model_config: Mapping[str, Any], config: ServeConfig, pipeline_class: type
) -> list[str]:
    """Return what is wrong with an entry, each in one line; empty when it fits.

    model_config: config.pbtxt as a dictionary, as Triton passes it to `initialize`.
    """
    from triton_diffusers.loading import import_diffusers

    signature = read_signature(pipeline_class)
    decoupled = bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
    problems = []
    for block, expected in (
        ("input", entry_inputs(signature)),
        ("output", entry_outputs(signature, decoupled)),
    ):
        wanted = {t.name: (t.data_type, t.dims) for t in expected}
        found = {
            t["name"]: (t["data_type"], tuple(int(d) for d in t["dims"]))
            for t in model_config.get(block, [])
        }
        if wanted != found:
            problems.append(_difference(block, wanted, found))
    if not problems:
        return []
    installed = import_diffusers().__version__
    written = config.diffusers_version or "an unknown version"
    where = f"written for diffusers {written}, {installed} is installed"
    fix = "write it again with: builder add-model MODEL --name NAME --force"
    return [
        f"the entry does not fit {pipeline_class.__name__} ({where}): {'; '.join(problems)}; {fix}"
    ]


def _difference(block: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"lacks {', '.join(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"has {', '.join(extra)}, which the pipeline does not")
    differ = sorted(n for n in wanted.keys() & found.keys() if wanted[n] != found[n])
    if differ:
        parts.append(f"declares another type or shape for {', '.join(differ)}")
    return f"{block} {' and '.join(parts)}"
