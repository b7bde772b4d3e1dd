"""Parts of messages as Gemini takes them, and what stands in their place where it does not."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from mimetypes import guess_type
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from rxloop.protocol.messages import FilePart, ImagePart

_TAKEN = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf|text/.+")
_IN_RESULTS = re.compile(r"image/(png|jpeg|webp)|application/pdf|text/plain")
_TEXTS = re.compile(
    r"application/(json|xml|toml|sql|x-ndjson|rtf|(x-)?(javascript|typescript|python|yaml|sh)|.+\+(json|xml))|image/svg\+xml"
)
_MEDIA_HOSTS = ("youtube.com", "www.youtube.com", "youtu.be")


def media(part: ImagePart | FilePart) -> dict[str, Any] | None:
    """The part of a request that shows an image or a file; None where Gemini does not take its type."""
    kind, data = part.media_type, None
    if part.data is not None:
        data = b64encode(part.data).decode()
    elif (part.url or "").startswith("data:"):
        kind, data = _of_data_url(part.url or "")
    try:
        url = urlsplit(part.url or "")
    except ValueError:
        return None
    if data is None and url.hostname in _MEDIA_HOSTS:
        return {"fileData": {"fileUri": part.url}}
    kind = _kind(kind or guess_type(url.path)[0])
    if data is None:
        # A file of Google's own store knows its type.
        stored = url.path.startswith("/v1beta/files/") and kind is None
        if stored or _is_taken(kind):
            return {"fileData": {"fileUri": part.url, **({} if kind is None else {"mimeType": kind})}}
        return None
    return {"inlineData": {"mimeType": kind, "data": data}} if data and _is_taken(kind) else None


def fits_results(part: dict[str, Any]) -> bool:
    """Whether such a part may stand inside the result of a call."""
    blob = part.get("inlineData")
    return blob is not None and _IN_RESULTS.fullmatch(blob["mimeType"]) is not None


def _is_taken(kind: str | None) -> bool:
    return kind is not None and _TAKEN.fullmatch(kind) is not None


def _kind(kind: str | None) -> str | None:
    """A media type by the name that Gemini has for it."""
    if kind is None:
        return None
    kind = kind.partition(";")[0].strip().lower()
    if kind == "image/jpg":
        return "image/jpeg"
    return "text/plain" if _TEXTS.fullmatch(kind) else kind


def _of_data_url(url: str) -> tuple[str, str]:
    head, _, data = url.partition(",")
    kind, *rest = head.removeprefix("data:").split(";")
    given = unquote_to_bytes(data)
    if "base64" in rest:
        try:
            given = b64decode(given, validate=True)
        except ValueError:
            given = b""
    return kind or "text/plain", b64encode(given).decode()
