# SPDX-License-Identifier: Apache-2.0
"""An entry with a real entry's tensors that repeats what it was sent: the client's transport tests.

`behave` asks for an error by name, `sleep 2` for a wait that ends when the request is cancelled,
`deaf 2` for one that does not, `refuse TEXT` for INVALID_ARG with that text, `die` for a
stub that ends after its answer. Everything else is echoed in `info`, bit for bit.
"""

import hashlib
import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

GRPC_NAMES = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}
"""Triton's name of a status -> gRPC's, where they differ."""


def seen(array):
    """Describe an input: dtype, shape, digest of its bytes, and the values of small ones."""
    if array.dtype == object:
        items = [bytes(item) for item in array.reshape(-1)]
        texts = [i.decode() if len(i) < 200 and i.isascii() else None for i in items]
        digests = [hashlib.sha256(item).hexdigest() for item in items]
        return {"dtype": "object", "shape": array.shape, "values": texts, "digests": digests}
    values = [repr(v) for v in array.reshape(-1).tolist()] if array.size < 50 else None
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"dtype": str(array.dtype), "shape": array.shape, "values": values, "digest": digest}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.names = [entry["name"] for entry in config["input"]]
        policy = config.get("model_transaction_policy", {})
        self.decoupled = policy.get("decoupled", False)
        self.calls = 0
        self.cancelled = 0

    def execute(self, requests):
        for request in requests:
            self.calls += 1
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            response = self.respond(request, sender)
        except Exception as error:
            code = getattr(error, "code", pb_utils.TritonError.INTERNAL)
            triton_error = pb_utils.TritonError(str(error), code)
            response = pb_utils.InferenceResponse(output_tensors=[], error=triton_error)
        sender.send(response, flags=final)

    def respond(self, request, sender):
        sent = {}
        for name in self.names:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                sent[name] = tensor.as_numpy()

        def one(name, default):
            return sent[name].reshape(-1)[0] if name in sent else default

        steps = int(one("num_inference_steps", 3))
        if self.decoupled:
            for step in range(steps):
                progress = pb_utils.Tensor("progress", np.array([step + 1, steps], np.int64))
                sender.send(pb_utils.InferenceResponse(output_tensors=[progress]))
        self.misbehave(bytes(one("behave", b"")).decode(), request)
        height = int(one("height", one("tall", 64)))
        width = int(one("width", one("wide", 48)))
        seeds = sent.get("seed", np.array([7], np.int64))
        info = {
            "model": "echo",
            "calls": self.calls,
            "cancelled": self.cancelled,
            "timeout_us": request.timeout(),
            "parameters": json.loads(request.parameters() or "{}"),
            "inputs": {name: seen(array) for name, array in sent.items()},
        }
        outputs = self.pictures(sent, height, width, len(seeds))
        outputs["seed"] = seeds
        outputs["info"] = np.array([json.dumps(info).encode()], object)
        tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def pictures(self, sent, height, width, count):
        if "image_bytes" in sent and "output_format" in sent:
            return {"media": sent["image_bytes"]}
        if "audio" in sent:
            return {"audios": sent["audio"][None], "sampling_rate": np.array([16000], np.int64)}
        if "image" in sent:
            return {"images": sent["image"], "nsfw_content_detected": np.array([True])}
        ramp = np.arange(count * height * width * 3, dtype=np.int64) % 251
        return {"images": ramp.astype(np.uint8).reshape(count, height, width, 3)}

    def misbehave(self, behave, request):
        if behave.startswith("sleep"):
            until = time.monotonic() + float(behave.split()[1])
            while time.monotonic() < until:
                if request.is_cancelled():
                    self.cancelled += 1
                    self.refuse("CANCELLED", "the request was cancelled")
                time.sleep(0.01)
        elif behave.startswith("deaf"):
            time.sleep(float(behave.split()[1]))
        elif behave == "cancel":
            self.refuse("CANCELLED", "the request was cancelled")
        elif behave.startswith("refuse "):
            self.refuse("INVALID_ARG", behave.removeprefix("refuse "))
        elif behave == "die":
            threading.Timer(0.1, os._exit, (1,)).start()
        elif behave:
            self.refuse(behave, f"asked to answer {behave}")

    def refuse(self, code, text):
        if self.decoupled:  # as serving does, since Triton streams texts only
            text = f"[StatusCode.{GRPC_NAMES.get(code, code)}] {text}"
        error = ValueError(text)
        error.code = getattr(pb_utils.TritonError, code)
        raise error
