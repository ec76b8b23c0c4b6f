# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a model that is away for a while: it answers every request with UNAVAILABLE.

Triton itself answers NOT_FOUND for a model that loads or failed to, which callers take for a wrong
name. So a model without weights, but with the same inputs and outputs, takes its name meanwhile;
the real one takes its place when it is loaded. It comes with the load call: no file is written.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from builder.tritonserver.stubs import STAND_IN

KEPT = ("name", "max_batch_size", "input", "output", "model_transaction_policy")
CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError({text!r}, pb_utils.TritonError.UNAVAILABLE)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse(error=error), flags=final)
"""


def files(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what a load call sends in the place of the model's own files.

    config: of the model, as Triton gives it out.
    """
    own = {key: config[key] for key in KEPT if key in config}
    # without a difference in more than instances Triton would keep the old processes
    own |= {
        "backend": "python",
        "instance_group": [{"name": STAND_IN, "count": 1, "kind": "KIND_CPU"}],
        "parameters": {**_parameters(config), STAND_IN: {"string_value": "1"}},
    }
    text = f"model '{config['name']}' is being loaded again, since its process ended; try later"
    code = base64.b64encode(CODE.format(text=text).encode()).decode()
    return {"config": json.dumps(own), "file:1/model.py": code}


def is_stand_in(config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is that of a stand-in."""
    return STAND_IN in config.get("parameters", {})


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry's options, which others may read; its own Python is far from its folder."""
    options = config.get("parameters", {})
    return {key: value for key, value in options.items() if key != "EXECUTION_ENV_PATH"}
