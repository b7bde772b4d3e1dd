"""Links to files outside of the artifact store, and to other pages that clients and people open.

Only plain web addresses are links. Nothing in this module opens a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard, cast
from urllib.parse import urlsplit

MAX_LINK_LENGTH = 2_000
"""Maximum length of a URL in characters."""
_CHARACTERS = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII characters except the backslash, which browsers read as a slash."""


def find_link_fault(url: object, max_length: int = MAX_LINK_LENGTH) -> str | None:
    """Return why a value is not a link, or None if it is. The reason does not contain the URL or its credentials."""
    if not isinstance(url, str):
        return f"it must be a string, got {type(url).__qualname__}"
    if len(url) > max_length:
        return f"it must have at most {max_length:,} characters, got {len(url):,}"
    if not _CHARACTERS.fullmatch(url):
        return "it must consist of printable ASCII characters without spaces and backslashes; percent-encode all others"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "it is not a valid URL"
    if parts.scheme not in ("http", "https") or not has_host:
        return "it must start with https:// or http:// and a host name"
    if "@" in parts.netloc:
        return "it must not contain a user name or a password"
    return None


def is_page(url: str | None) -> TypeGuard[str]:
    """Return True if a source cited by a model can be shown as a link. It may contain letters of other alphabets."""
    return url is not None and url.startswith(("https://", "http://")) and url.isprintable()


def read_link(data: Any) -> str | None:
    """Return the URL of the artifact data `{"url": ...}`, or None if the data is not a link."""
    if not isinstance(data, Mapping):
        return None
    fields = cast("Mapping[str, Any]", data)
    url = fields.get("url")
    return url if len(fields) == 1 and find_link_fault(url) is None else None
