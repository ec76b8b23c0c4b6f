# SPDX-License-Identifier: Apache-2.0
"""Bodies -> JSON values and forms, bounded before they are parsed and off the event loop.

Python's JSON parser holds up every thread while it runs, so that what it is given is bounded too.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser

from triton_diffusers.gateway.errors import invalid
from triton_diffusers.gateway.requests.complexity import TooComplexError, load_json
from triton_diffusers.gateway.settings import Settings

MULTIPART = "multipart/form-data"
URLENCODED = "application/x-www-form-urlencoded"

LARGE = 2**16
"""Bytes from which on a body is parsed in a thread."""
MAX_FILES = 64
MAX_TYPE = 1024
"""Characters of a Content-Type."""
CHARSETS = (b"", b"utf-8", b"utf8", b"us-ascii", b"ascii", b"iso-8859-1", b"latin-1")
"""Others are refused: Python has codecs that take hours for a megabyte."""

_THREADS = ThreadPoolExecutor(2, "bodies")
"""Not asyncio's own, which the database and the files need meanwhile."""

T = TypeVar("T")


async def parse(size: int, work: Callable[[], T]) -> T:
    """Do work that takes longer the more bytes there are; of many, in a thread."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


async def read_json(content: bytes, settings: Settings) -> Any:
    """Return a JSON body's value. Raises ApiError 400 for no JSON, or one of too many values."""
    return await parse(len(content), lambda: _read_json(content, settings))


async def read_form(headers: Headers, content: bytes, settings: Settings) -> FormData:
    """Return a form's texts and files, which stay in memory. Raises ApiError 400."""
    return await parse(len(content), lambda: _read_form(headers, content, settings))


def _read_json(content: bytes, settings: Settings) -> Any:
    try:
        value = load_json(content, settings.max_json_values)
    except TooComplexError as error:
        raise invalid(f"the body has {error}", code="body_too_complex") from None
    except json.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON, or cannot be read: {error}") from None
    if isinstance(value, dict):
        check_number(value, settings)
    return value


def check_number(fields: Collection[str], settings: Settings) -> None:
    """Refuse more fields than a request may have. Raises ApiError 400."""
    if len(fields) > settings.max_fields:
        raise invalid(_too_many("the request", len(fields), settings), code="body_too_complex")


def _too_many(what: str, sent: int, settings: Settings) -> str:
    return f"{what} has {sent} fields; send at most {settings.max_fields} (max_fields)"


def _read_form(headers: Headers, content: bytes, settings: Settings) -> FormData:
    declared = headers.get("Content-Type", "")
    if len(declared) > MAX_TYPE:
        raise invalid(f"the Content-Type has more than {MAX_TYPE} characters; send a short one")
    kind, options = parse_options_header(declared)
    if options.get(b"charset", b"").lower() not in CHARSETS:
        raise invalid("the form's charset is not known here; send UTF-8")
    most = settings.max_fields
    pieces = _pieces(content)
    if kind != MULTIPART.encode():
        sent = max(content.count(b"&"), content.count(b";")) + 1
        if sent > 2 * most:  # separators with nothing between them take time, too
            raise invalid(_too_many("the form", sent, settings), code="body_too_complex")
        parser: Any = FormParser(headers, pieces, max_fields=most, max_part_size=len(content))
    else:
        parser = _MultiPart(
            headers, pieces, max_files=MAX_FILES, max_fields=most, max_part_size=len(content)
        )
    try:
        form: FormData = _finish(parser.parse())
    except MultiPartException as error:
        raise invalid(f"the form cannot be read: {error.__cause__ or error.message}") from None
    except FormParserError as error:
        raise invalid(f"the form cannot be read: {error}") from None
    return form


class _MultiPart(MultiPartParser):
    """Starlette's parser; files stay in memory, where the whole body is already."""

    spool_max_size = 2**40


async def _pieces(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a body as the stream that Starlette's parsers read; it never waits."""
    yield content
    yield b""


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("the parser of forms waited for something")
