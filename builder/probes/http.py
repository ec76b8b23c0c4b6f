# SPDX-License-Identifier: Apache-2.0
"""A probe over HTTP, with the standard library only."""

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from builder.probes.transport import NoAnswerError
from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import Config, blanks
from builder.tritonserver.server import DIRECT, read_reason
from triton_diffusers.config import admin_key
from triton_diffusers.contract import INFO, PROBE, is_decoupled


class Http:
    """Asks one server; everything together has to be done within `timeout_s`."""

    lists_all = True

    def __init__(self, where: str, timeout_s: float) -> None:
        self._where = where
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s

    def live(self) -> None:
        """Return when the server is live."""
        self._send("GET", "health/live")

    def states(self) -> dict[str, str]:
        """Return each model's state; without the server's key only of those that are ready."""
        try:
            key = admin_key.headers(self._where)
            index = json.loads(self._send("POST", "repository/index", b"{}", key))
            return {model["name"]: model.get("state", "") for model in index}
        except ServerError as error:
            if not admin_key.is_refusal(str(error)):
                raise
        self.lists_all = False
        told = json.loads(self._send("GET", "models/stats"))
        return {model["name"]: "READY" for model in told["model_stats"]}

    def config(self, name: str) -> Config:
        """Return the configuration of a loaded model."""
        return dict(json.loads(self._send("GET", f"models/{name}/config")))

    def ask(self, name: str, config: Config) -> str:
        """Send one probe request; a decoupled model answers /generate only."""
        return self._generate(name, config) if is_decoupled(config) else self._infer(name, config)

    def _infer(self, name: str, config: Config) -> str:
        inputs = [(blank, blank.to_bytes()) for blank in blanks(config)]
        described = [
            {
                "name": blank.name,
                "datatype": blank.data_type,
                "shape": blank.shape,
                "parameters": {"binary_data_size": len(raw)},
            }
            for blank, raw in inputs
        ]
        asked = {
            "inputs": described,
            "outputs": [{"name": INFO.name}],
            "parameters": {PROBE: True},
        }
        head = json.dumps(asked).encode()
        body = head + b"".join(raw for _, raw in inputs)
        length = {"Inference-Header-Content-Length": str(len(head))}
        answer = json.loads(self._send("POST", f"models/{name}/infer", body, length))
        outputs = {output["name"]: output["data"] for output in answer.get("outputs", ())}
        return str(outputs.get(INFO.name, [""])[0])

    def _generate(self, name: str, config: Config) -> str:
        blank: dict[str, Any] = {b.name: _json_value(b.data_type) for b in blanks(config)}
        body = json.dumps({**blank, PROBE: True}).encode()
        return str(json.loads(self._send("POST", f"models/{name}/generate", body)).get(INFO.name))

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> str:
        url = f"http://{self._where}/v2/{path}"
        request = urllib.request.Request(url, body, headers or {}, method=method)
        left_s = self._deadline - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError
            with DIRECT.open(request, timeout=left_s) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            raise ServerError(read_reason(error.read().decode(errors="replace"))) from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(self._silence(path, error)) from None

    def _silence(self, path: str, error: Exception) -> str:
        """Word it when nothing comes back."""
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return f"no answer from {self._where} to /v2/{path} within {self._timeout_s:g} s"
        if isinstance(reason, http.client.HTTPException):
            reason = f"it speaks no HTTP ({type(reason).__name__})"
        return f"no tritonserver answers over HTTP at {self._where}: {reason}"


def _json_value(data_type: str) -> Any:
    return {"BYTES": "", "BOOL": False}.get(data_type, 0)
