# SPDX-License-Identifier: Apache-2.0
"""Answers that are files: whole or in part, with what is told of them in headers."""

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from triton_diffusers.client import Result
from triton_diffusers.gateway.errors import ApiError, busy
from triton_diffusers.gateway.jobs.files import FilesError, JobFiles
from triton_diffusers.gateway.models import Model

LOG = logging.getLogger(__name__)

RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})")

MAX_NOTES = 4096
"""Characters of the notes that a header carries."""


def document_file(description: str, media_types: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """Return the part of the OpenAPI document that says that an endpoint answers with a file."""
    schema = {"type": "string", "format": "binary"}
    content = {kind: {"schema": schema} for kind in media_types}
    return {200: {"description": description, "content": content}}


async def serve_file(request: Request, files: JobFiles, name: str, media_type: str) -> Response:
    """Answer with a job's file, or with the part that `Range` asks for.

    Raises ApiError: 404 for a file that is gone, 416 for a part that it does not have, 503 when
    the store fails.
    """
    try:
        size = await asyncio.to_thread(files.size, name)
    except FileNotFoundError:
        raise ApiError(
            404, "the video's file is no longer stored", code="video_not_found"
        ) from None
    except FilesError as error:
        LOG.warning("the file %s cannot be read: %s", name, error)
        raise busy("the video's file cannot be read; send it again later") from None
    tag = f'"{name}"'
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Cache-Control": "private"}
    part = _read_range(request.headers, tag, size)
    start, end = part or (0, size)
    headers["Content-Length"] = str(end - start)
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status = 206 if part else 200
    pieces = files.chunks(name, start, end)
    return StreamingResponse(pieces, status, headers=headers, media_type=media_type)


def describe_in_headers(model: Model, result: Result, notes: list[str]) -> dict[str, str]:
    """Return the headers that tell what JSON answers tell: model, seed, seconds, notes."""
    name = model.name.encode("ascii", "backslashreplace").decode()
    told = {"X-Model": name, "X-Notes": _ascii_json(notes)}
    if result.seeds:
        told["X-Seed"] = str(result.seeds[0])
    if result.info.get("seconds"):
        told["X-Stage-Seconds"] = _ascii_json(result.info["seconds"])
    return told


def _read_range(headers: Mapping[str, str], tag: str, size: int) -> tuple[int, int] | None:
    """Return (start, end) of the one part asked for, the end left out; None for the whole.

    Several parts, other units and a file that changed get the whole, as RFC 9110 allows.
    """
    found = RANGE.fullmatch(headers.get("range", "").strip())
    if found is None or found.groups() == ("", "") or headers.get("if-range", tag) != tag:
        return None
    first, last = found.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise ApiError(
            416,
            f"Range: {headers['range'][:60]}; the video has {size} bytes",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, end


def _ascii_json(value: object) -> str:
    """Return JSON that a header can carry."""
    text = json.dumps(value)
    return text if len(text) <= MAX_NOTES else json.dumps([text[: MAX_NOTES // 2] + " ..."])
