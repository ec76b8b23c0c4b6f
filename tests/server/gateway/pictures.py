# SPDX-License-Identifier: Apache-2.0
"""Pictures as requests and answers carry them."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
from PIL import Image

TIMEOUT_S = 60.0


def file_of(picture: Image.Image, file_format: str = "PNG") -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    picture.save(file, format=file_format)
    return file.getvalue()


def url_of(picture: Image.Image) -> str:
    """A picture as a data: URL."""
    return f"data:image/png;base64,{base64.b64encode(file_of(picture)).decode()}"


def pixels_of(text: str) -> np.ndarray:
    """The pixels of a data: URL or of base64."""
    file = base64.b64decode(text.rpartition(",")[2])
    return np.asarray(Image.open(io.BytesIO(file)))


def pictures_in(response: httpx.Response) -> list[np.ndarray]:
    """The pixels of each picture of an answer."""
    assert response.status_code == 200, response.text
    return [pixels_of(part.get("b64_json") or part["url"]) for part in response.json()["data"]]


def error_in(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error object of an answer."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error
