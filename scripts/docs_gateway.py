# SPDX-License-Identifier: Apache-2.0
"""The generated parts of docs/gateway.md: from the app, its settings, the tables of its fields."""

import tempfile
from collections.abc import Iterable

from triton_diffusers.config.options import named
from triton_diffusers.gateway import Settings, create_app, errors
from triton_diffusers.gateway.middleware.metrics import GatewayMetrics
from triton_diffusers.gateway.requests import fields

Rows = Iterable[tuple[str, ...]]

FIELDS = (
    (fields.OURS, "how to answer; `stream_progress` is ours"),
    (("size",), "`width` and `height` of the model; `auto` is the same as leaving it out"),
    (fields.COUNTS, "the model's own number of outputs per prompt"),
    (("output_format",), "the file's format"),
    (("output_compression",), "quality of jpeg and webp, 100 the best"),
    (("image", "images", "mask"), "the model's inputs for pictures and masks"),
    (fields.MERGED, "an object whose entries are fields, as if each stood on its own"),
    (named("in_requests"), "compared with how the entry was loaded: another value is refused"),
    (fields.COSMETIC, "OpenAI's; ignored with a note where the model has no such input"),
    (fields.CHAT, "OpenAI's of chats; ignored with a note"),
    (("any other name",), "the model's input of that name; refused where it has none"),
)
"""Fields -> what becomes of them."""


def gateway_endpoints() -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(database=f"sqlite:///{folder}/jobs.db", files=folder))
        paths = app.openapi()["paths"]
    yield "endpoint", "what it does"
    for path, methods in paths.items():
        for method, told in methods.items():
            about = " ".join(told.get("description", "").split("\n\n")[0].split())
            yield f"`{method.upper()} {path}`", about


def gateway_settings() -> Rows:
    prefix = Settings.model_config["env_prefix"]
    yield "option", f"variable {prefix}...", "default", "what it is"
    for name, field in Settings.model_fields.items():
        option = f"`--{name.replace('_', '-')}`" if name != "api_keys" else "none: it is a secret"
        default = "" if field.default in (None, ()) else f"`{_text(field.default)}`"
        yield option, f"`{name.upper()}`", default, str(field.description)


def gateway_fields() -> Rows:
    yield "field", "what becomes of it"
    for names, about in FIELDS:
        quoted = (f"`{name}`" if " " not in name else name for name in names)
        yield ", ".join(quoted), about


def gateway_statuses() -> Rows:
    yield "status", "`type`", "when"
    for status, (kind, about) in errors.MEANINGS.items():
        yield str(status), f"`{kind}`", about


def gateway_metrics() -> Rows:
    yield "metric", "kind", "labels", "what it is"
    metrics = GatewayMetrics()
    for metric in (
        *(metrics.requests, metrics.seconds, metrics.added, metrics.running, metrics.jobs),
    ):
        family = next(iter(metric.describe()))
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        yield f"`{name}`", family.type, labels, family.documentation


def _text(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


PARTS = (gateway_endpoints, gateway_settings, gateway_fields, gateway_statuses, gateway_metrics)
