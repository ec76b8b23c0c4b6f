# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: what the gateway counts, for Prometheus.

Labels have few values: paths as they are declared, names of models that are served, statuses.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX = "triton_diffusers_gateway_"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
ADDED_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0)

CountJobs = Callable[[], Awaitable[Mapping[str, int]]]

router = APIRouter(tags=["operations"])


@dataclass
class Tally:
    """What becomes known of a request while it is answered."""

    model: str = ""
    calls_s: float = 0.0
    """Seconds spent waiting for tritonserver."""


current: ContextVar[Tally | None] = ContextVar("current", default=None)
"""The tally of the request that runs."""


@contextmanager
def waiting_for(model: str) -> Iterator[None]:
    """Tell the request that runs, if one does, that it waits for a call of a model."""
    tally = current.get() or Tally()
    tally.model = model
    started = time.perf_counter()
    try:
        yield
    finally:
        tally.calls_s += time.perf_counter() - started


class GatewayMetrics:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.count_jobs: CountJobs | None = None
        """Returns how many jobs there are by status."""
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            PREFIX + "requests",
            "requests that were answered; status 499: the caller went away before",
            ("endpoint", "model", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            PREFIX + "request_seconds",
            "from the request's head to the end of its answer",
            ("endpoint",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.added = Histogram(
            PREFIX + "added_seconds",
            "the part of request_seconds that was not spent waiting for tritonserver; of "
            "requests that called a model and were not streamed",
            ("endpoint",),
            buckets=ADDED_SECONDS,
            registry=self.registry,
        )
        self.running = Gauge(
            PREFIX + "requests_running", "requests that run", registry=self.registry
        )
        self.jobs = Gauge(
            PREFIX + "jobs", "jobs in the database", ("status",), registry=self.registry
        )

    async def render(self) -> bytes:
        """Return all as text."""
        if self.count_jobs is not None:
            self.jobs.clear()
            for status, count in (await self.count_jobs()).items():
                self.jobs.labels(status).set(count)
        return generate_latest(self.registry)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the gateway's metrics in Prometheus' text format."""
    told: GatewayMetrics = request.app.state.metrics
    return Response(await told.render(), media_type=CONTENT_TYPE_LATEST)


class Counted:
    """ASGI middleware that counts requests."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics):
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        tally = Tally()
        token = current.set(tally)
        started = time.perf_counter()
        self._metrics.running.inc()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            current.reset(token)
            self._metrics.running.dec()
            self._count(_endpoint(scope), tally, exchange, time.perf_counter() - started)

    def _count(self, endpoint: str, tally: Tally, exchange: "_Exchange", seconds: float) -> None:
        self._metrics.requests.labels(endpoint, tally.model, str(exchange.status)).inc()
        self._metrics.seconds.labels(endpoint).observe(seconds)
        if tally.calls_s and exchange.status == 200 and not exchange.streamed:
            self._metrics.added.labels(endpoint).observe(max(0.0, seconds - tally.calls_s))


class _Exchange:
    """Looks at the messages of a request and its answer as they pass."""

    def __init__(self, receive: Receive, send: Send):
        self.status = 500  # what is answered where the app fails before it answers
        self.streamed = False
        self._complete = False
        self._receive, self._send = receive, send

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._complete:
            self.status = 499
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self.status != 499:
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
            self.streamed = self.streamed or not self._complete
        await self._send(message)


def _endpoint(scope: Scope) -> str:
    """Return method and path as they are declared; what is none of them is "other"."""
    route = scope.get("route")
    path, methods = getattr(route, "path", None), getattr(route, "methods", None) or ()
    return f"{scope['method']} {path}" if scope["method"] in methods else "other"
