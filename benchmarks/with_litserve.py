# SPDX-License-Identifier: Apache-2.0
"""The LitServe server of servers.py: python -m benchmarks.with_litserve PORT BATCH_TIMEOUT_S

In a module of its own: LitServe's inference process imports the class from here.
"""

import sys
from collections import defaultdict
from typing import Any

import litserve
from fastapi import Response

from benchmarks.entries import BATCH
from benchmarks.plain import Plain, png
from benchmarks.work import Request


class Api(litserve.LitAPI):
    """Batches of any requests; those that may share a call of the pipeline do."""

    def setup(self, device: str) -> None:
        self.plain = Plain()

    def decode_request(self, request: dict[str, Any]) -> Request:
        return Request(**request)

    def batch(self, inputs: list[Request]) -> list[Request]:
        return inputs

    def predict(self, x: list[Request]) -> list[Any]:
        groups = defaultdict(list)
        for place, request in enumerate(x):
            groups[request.steps, request.size].append(place)
        pictures: list[Any] = [None] * len(x)
        for places in groups.values():
            made = self.plain.pictures([x[place] for place in places])
            for place, picture in zip(places, made, strict=True):
                pictures[place] = picture
        return pictures

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> Response:
        return Response(png(output), media_type="image/png")


if __name__ == "__main__":
    api = Api(max_batch_size=BATCH, batch_timeout=float(sys.argv[2]))
    server = litserve.LitServer(api, accelerator="cpu", devices=1, timeout=600)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False
    )
