"""Images and files as blocks of a message."""

from __future__ import annotations

from base64 import b64decode, b64encode
from mimetypes import guess_type
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from rxloop.protocol.messages import FilePart, ImagePart

_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
_TEXTS = frozenset(("application/json", "application/xml", "application/yaml", "application/x-yaml"))
_PDF = "application/pdf"
_LONGEST_TITLE = 500


class MediaRules(NamedTuple):
    """What the place where Claude is served takes of images and files."""

    fetches: bool = True
    """It fetches them by their URL."""
    citations: bool = False
    """The model is to say what in the documents its words rest on."""


def media_block(part: ImagePart | FilePart, rules: MediaRules) -> dict[str, Any] | None:
    """The block of an image or a file; None where the vendor does not take one of its type."""
    media_type, data = _bytes_of(part)
    if data is None:
        source = _by_url(part, rules)
        return None if source is None else _block(part, source, rules)
    if media_type in _IMAGES:
        source = {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
        return {"type": "image", "source": source}
    if isinstance(part, ImagePart):
        return None
    if media_type == _PDF:
        return _block(part, {"type": "base64", "media_type": _PDF, "data": b64encode(data).decode()}, rules)
    text = _text_of(data) if media_type.startswith("text/") or media_type in _TEXTS else None
    if text is None or not text.strip():
        return None
    return _block(part, {"type": "text", "media_type": "text/plain", "data": text}, rules)


def _block(part: ImagePart | FilePart, source: dict[str, Any], rules: MediaRules) -> dict[str, Any]:
    if source["type"] == "url" and _is_image(part):
        return {"type": "image", "source": source}
    block: dict[str, Any] = {"type": "document", "source": source}
    if isinstance(part, FilePart) and part.filename and part.filename.strip():
        block["title"] = part.filename[:_LONGEST_TITLE]
    if rules.citations:
        block["citations"] = {"enabled": True}
    return block


def _by_url(part: ImagePart | FilePart, rules: MediaRules) -> dict[str, Any] | None:
    url = part.url or ""
    if not rules.fetches or not url.startswith(("https://", "http://")):
        return None
    kind = _kind_at(part)
    fetched = kind in _IMAGES or (isinstance(part, FilePart) and kind == _PDF) or kind is None
    return {"type": "url", "url": url} if fetched else None


def _is_image(part: ImagePart | FilePart) -> bool:
    return isinstance(part, ImagePart) or _kind_at(part) in _IMAGES


def _kind_at(part: ImagePart | FilePart) -> str | None:
    """The type of what is at the URL, as far as it is said."""
    try:
        return part.media_type or guess_type(urlsplit(part.url or "").path)[0]
    except ValueError:
        return None


def _bytes_of(part: ImagePart | FilePart) -> tuple[str, bytes | None]:
    if part.data is not None:
        return (part.media_type or "").partition(";")[0].strip().lower(), part.data
    url = part.url or ""
    if not url.startswith("data:"):
        return "", None
    head, _, written = url[5:].partition(",")
    kind, *options = [option.strip().lower() for option in head.split(";")]
    try:
        data = b64decode(written) if "base64" in options else unquote_to_bytes(written)
    except ValueError:
        return kind, b""
    return kind or "text/plain", data


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
