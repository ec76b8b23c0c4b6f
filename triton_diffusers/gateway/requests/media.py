# SPDX-License-Identifier: Apache-2.0
"""Pictures, videos and sound in a request -> file contents for the model's media inputs.

A value is an uploaded file (bytes), or a text: a data: URL, base64, or the URL of a host that the
operator allows (fetching.py). No text is ever taken as a path. What a file holds is the server's
to check; only masks are looked into here.
"""

import asyncio
import base64
import binascii
import io
import string
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import BYTES_SUFFIX
from triton_diffusers.gateway.errors import ApiError, invalid
from triton_diffusers.gateway.models import Model
from triton_diffusers.gateway.requests.bodies import parse
from triton_diffusers.gateway.requests.fetching import fetch_image
from triton_diffusers.gateway.settings import Settings
from triton_diffusers.media.decode import picture_formats

IMAGE_FIELDS = ("image", "images")
MASK_FIELD = "mask"

IMAGES_FIRST = ("image", "images", "input_images", "reference_image", "reference_images")
"""Media inputs that OpenAI's `image` means, the first that the model has."""

MASKS_FIRST = ("mask_image", "mask", "control_mask")
"""Media inputs that OpenAI's `mask` means, the first that the model has."""

ADAPTER = "ip_adapter_image"
"""A picture beside the prompt, for entries with an adapter: meant only by its own name."""

_THREADS = ThreadPoolExecutor(2, "pictures")
"""So few, since a picture of a few kilobytes may become 300 MB while it is looked into."""

ACCEPTED = "send a data: URL (data:image/png;base64,...) or base64"


def input_of(model: Model, name: str) -> str | None:
    """Return the media input that a field means; None where it means none.

    Raises ApiError 400 for a picture or mask that the model has no input for.
    """
    own = name.removesuffix(BYTES_SUFFIX) if model.entry.is_file(name) else name
    if model.entry.is_media(own):
        return own
    if name not in (*IMAGE_FIELDS, MASK_FIELD):
        return None
    media = model.media_inputs
    if name == MASK_FIELD:
        found = mask_input(model)
    else:
        found = next((known for known in IMAGES_FIRST if known in media), None)
    if found is None and name != MASK_FIELD:
        found = _only([known for known in media if "mask" not in known and ADAPTER not in known])
    if found is None:
        takes = f"Its media inputs: {', '.join(media)}; send one by name." if media else ""
        takes = takes or "It takes no pictures, videos or sound."
        raise invalid(f"{name}: '{model.name}' has no input for it. {takes}", name)
    return found


async def read_media(settings: Settings, name: str, value: Any) -> list[bytes]:
    """Return the file contents that a field holds, at least one.

    Raises ApiError: 400 for what is no file, 413 for one over settings.max_upload_bytes.
    """
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise invalid(f"{name}: an empty list; {ACCEPTED}, or leave it out", name)
    return [await _read(settings, name, item) for item in items]


async def read_mask(settings: Settings, model: Model, value: Any) -> tuple[list[bytes], str]:
    """Return the mask as the pipelines take it (white is edited), and a note how it was read."""
    (mask, *more) = await read_media(settings, MASK_FIELD, value)
    if more:
        raise invalid(f"mask: {len(more) + 1} files; send one", MASK_FIELD)
    white = await transparency_of(model, MASK_FIELD, mask)
    if white is None:
        return [mask], "mask has no transparent pixels: its white pixels are edited (diffusers)"
    return [white], "mask has transparent pixels: these are edited (OpenAI)"


def mask_input(model: Model) -> str | None:
    """Return the model's input for a mask, if it has one."""
    return next((known for known in MASKS_FIRST if known in model.media_inputs), None)


async def transparency_of(model: Model, name: str, picture: bytes) -> bytes | None:
    """Return a PNG that is white where a picture is transparent; None where it nowhere is.

    Raises ApiError 400 for what is no picture, or a larger one than the model takes.
    """
    most = int(model.parameters.get("max_input_pixels") or ServeConfig.max_input_pixels)
    work = partial(_white_where_transparent, name, picture, most)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


def check_upload(settings: Settings, name: str, size: int) -> None:
    """Refuse a file that is too large. Raises ApiError 413."""
    if size > settings.max_upload_bytes:
        raise ApiError(
            413,
            f"{name}: {size} bytes; at most {settings.max_upload_bytes} are accepted "
            "(max_upload_bytes of the gateway); send a smaller file",
            param=name,
            code="file_too_large",
        )


async def _read(settings: Settings, name: str, item: Any) -> bytes:
    if isinstance(item, dict):
        item = _url_of(name, item)
    if isinstance(item, bytes):
        content = item
    elif not isinstance(item, str):
        raise invalid(f"{name}: {type(item).__name__}; {ACCEPTED}", name)
    elif item[:8].lower().startswith(("http://", "https://")):
        content = await fetch_image(settings, name, item)
    else:
        check_upload(settings, name, len(item) * 3 // 4 - 2 if len(item) > 1024 else 0)
        text = item
        content = await parse(len(text), lambda: _from_text(name, text))
    if not content:
        raise invalid(f"{name}: the file is empty", name)
    check_upload(settings, name, len(content))
    return content


def _url_of(name: str, item: dict[str, Any]) -> Any:
    """Return what OpenAI's objects hold: {"image_url": URL or {"url": URL}}."""
    if item.get("file_id") is not None:
        raise invalid(f"{name}: files by file_id are not kept here; {ACCEPTED}", name)
    url = item.get("image_url", item.get("url"))
    return url.get("url") if isinstance(url, dict) else url


def _from_text(name: str, text: str) -> bytes:
    """Decode a data: URL or base64. Other texts are refused: no path is ever read."""
    if text[:5].lower() == "data:":
        header, comma, text = text.partition(",")
        if not comma or not header.lower().endswith(";base64"):
            raise invalid(f"{name}: a data: URL must be data:TYPE;base64,CONTENT", name)
    try:
        compact = text.encode("ascii").translate(None, string.whitespace.encode())
        alphabet = b"-_" if b"-" in compact or b"_" in compact else None
        return base64.b64decode(compact, altchars=alphabet, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(
            f"{name}: neither a data: URL nor base64 ({error}); {ACCEPTED}. "
            "Paths are not accepted.",
            name,
        ) from None


def _white_where_transparent(name: str, picture: bytes, most: int) -> bytes | None:
    try:
        image = Image.open(io.BytesIO(picture), formats=picture_formats())
        if image.width * image.height > min(most, Image.MAX_IMAGE_PIXELS or most):
            size = f"{image.width}x{image.height}"
            raise invalid(f"{name}: {size} pixels; send at most {most} in all", name)
        if not image.has_transparency_data:
            return None
        alpha = ImageOps.exif_transpose(image).convert("RGBA").getchannel("A")
    except ApiError:
        raise
    except UnidentifiedImageError:
        raise invalid(
            f"{name}: {len(picture)} bytes that are no picture; send a PNG", name
        ) from None
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        raise invalid(f"{name}: broken picture ({error}); send it again", name) from None
    if alpha.getextrema() == (255, 255):
        return None
    file = io.BytesIO()
    ImageChops.invert(alpha).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None
