# SPDX-License-Identifier: Apache-2.0
"""The FastAPI server of servers.py, one call at a time: python -m benchmarks.with_fastapi PORT"""

import sys
import threading

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from benchmarks.plain import Plain, png
from benchmarks.work import Request

app = FastAPI()
lock = threading.Lock()
plain = Plain()


class Body(BaseModel):
    number: int
    steps: int
    size: int


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/generate")
def generate(body: Body) -> Response:
    with lock:
        (picture,) = plain.pictures([Request(**body.model_dump())])
    return Response(png(picture), media_type="image/png")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
