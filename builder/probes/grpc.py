# SPDX-License-Identifier: Apache-2.0
"""A probe over gRPC."""

import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from builder.probes.transport import NoAnswerError
from builder.tritonserver.installation import ServerError
from builder.tritonserver.model_config import Config, blanks
from builder.tritonserver.server import read_reason
from triton_diffusers.config import admin_key
from triton_diffusers.contract import INFO, PROBE, is_decoupled


class Grpc:
    """Asks one server; everything together has to be done within `timeout_s`."""

    lists_all = True

    def __init__(self, where: str, timeout_s: float) -> None:
        self._where = where
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        # a proxy of the environment is not for the machine's own server
        channel = grpc.insecure_channel(where, options=[("grpc.enable_http_proxy", 0)])
        self._service = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def live(self) -> None:
        """Return when the server is live."""
        self._call("ServerLive", service_pb2.ServerLiveRequest())

    def states(self) -> dict[str, str]:
        """Return each model's state; without the server's key only of those that are ready."""
        try:
            request = service_pb2.RepositoryIndexRequest()
            index = self._call("RepositoryIndex", request, admin_key.metadata(self._where))
            return {model.name: model.state for model in index.models}
        except ServerError as error:
            if not admin_key.is_refusal(str(error)):
                raise
        self.lists_all = False
        told = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest())
        return {stats.name: "READY" for stats in told.model_stats}

    def config(self, name: str) -> Config:
        """Return the configuration of a loaded model."""
        answer = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=name))
        return dict(json_format.MessageToDict(answer.config, preserving_proto_field_name=True))

    def ask(self, name: str, config: Config) -> str:
        """Send one probe request; a decoupled model answers streams only."""
        request = service_pb2.ModelInferRequest(model_name=name)
        request.parameters[PROBE].bool_param = True
        request.outputs.add(name=INFO.name)
        for blank in blanks(config):
            request.inputs.add(name=blank.name, datatype=blank.data_type, shape=blank.shape)
            request.raw_input_contents.append(blank.to_bytes())
        stream = is_decoupled(config)
        answer = self._stream(request) if stream else self._call("ModelInfer", request)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=False):
            if output.name == INFO.name:
                return bytes(raw[4:]).decode(errors="replace")  # behind its length
        return ""

    def _stream(self, request: Any) -> Any:
        """Read a stream to its end: Triton does not let go of a model whose stream was left."""
        call = self._service.ModelStreamInfer
        responses = self._reach(
            "ModelStreamInfer", lambda left_s: list(call(iter([request]), timeout=left_s))
        )
        for response in responses:
            if response.error_message:
                raise ServerError(read_reason(response.error_message))
            return response.infer_response
        raise ServerError("it closed the stream without an answer")

    def _call(self, method: str, request: Any, metadata: admin_key.Metadata = ()) -> Any:
        call = getattr(self._service, method)
        return self._reach(method, lambda left_s: call(request, timeout=left_s, metadata=metadata))

    def _reach(self, what: str, call: Callable[[float], Any]) -> Any:
        left_s = self._deadline - time.monotonic()
        try:
            return call(max(0.001, left_s))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"no answer from {self._where} to {what} within {self._timeout_s:g} s"
                raise NoAnswerError(text) from None
            # once others were answered, it is the model's own word
            unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
            refused = admin_key.is_refusal(error.details() or "")
            if unavailable and what != "ModelInfer" and not refused:
                text = f"no tritonserver answers over gRPC at {self._where}: {error.details()}"
                raise NoAnswerError(text) from None
            raise ServerError(read_reason(error.details() or str(error.code()))) from None
