"""Removal of secrets from messages and URLs."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit, urlunsplit

import orjson

from rxloop.support.misuse import check_argument

REDACTED = "[redacted]"

MIN_LENGTH = 4
"""Minimum length of a secret in characters. Shorter strings would match too much text."""

_MIN_EMBEDDED_LENGTH = 8
"""Minimum length of secrets that are also redacted inside of other words."""

_SECRET_NAME = re.compile(r"auth|key|token|secret|password|cookie|credential|signature", re.IGNORECASE)

# Matches query values that are not secrets, such as API versions.
_HARMLESS = re.compile(r"[\d.-]*(?:preview)?", re.IGNORECASE)

_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|csk|xai|hf|nvapi|pplx|tgp|r8|fw|ghp|gho|github_pat|glpat)[-_][\w-]{12,}"
    r"|\bAIza[\w-]{20,}|\bAKIA[0-9A-Z]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]+)?"
    r"|\b[0-9a-f]{32}\.\w{16}\b"
)

_BEARER = re.compile(r"(\bBearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)

_NAMED_SECRET = re.compile(
    r"((?:api[_-]?key|token|secret|password|[?&]key|[?&]sig)[\"']?\s*[:=]\s*[\"']?)(?=[^\s\"'&,;}]{0,200}\d)[^\s\"'&,;}]{8,}",
    re.IGNORECASE,
)

_USERINFO = re.compile(r"(\bhttps?://)[^\s/@\"']{1,300}@", re.IGNORECASE)

_PROTOCOL = re.compile(r"[a-z_]+:(?=https?://)")
"""URL prefix in model strings."""


def display_url(url: str) -> str:
    """Return a URL or model string without user name, password and query, which may contain keys."""
    if protocol := _PROTOCOL.match(url):
        return protocol[0] + display_url(url[protocol.end() :])
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.sub("//[^/]*@", "//", url.partition("?")[0])
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def find_secrets(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in a request's URL and headers."""
    parts = urlsplit(url)
    secrets = [unquote(parts.password or "")]
    if parts.username and not parts.password:
        secrets.append(unquote(parts.username))
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        secrets += [pair, b64encode(pair.encode()).decode()]
    secrets += [value for _, value in parse_qsl(parts.query) if not _HARMLESS.fullmatch(value)]
    for name, value in headers.items():
        if _SECRET_NAME.search(name):
            secrets += [value, value.rpartition(" ")[2]]
    return tuple(dict.fromkeys(value for value in secrets if len(value) >= MIN_LENGTH))


def redact_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Redact the given secrets and anything that looks like a secret, including encoded forms."""
    if pattern := _compile_pattern(tuple(secrets)):
        text = pattern.sub(REDACTED, text)
    text = _USERINFO.sub(r"\1", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _LOOKS_SECRET.sub(REDACTED, text)
    return _NAMED_SECRET.sub(rf"\1{REDACTED}", text)


def redact_values(value: Any) -> Any:
    """Redact secrets in JSON data: values with the names of secrets, and anything that looks like a secret."""
    if isinstance(value, dict):
        return {
            name: REDACTED if _SECRET_NAME.search(name) else redact_values(item)
            for name, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [redact_values(item) for item in cast("list[Any]", value)]
    return redact_secrets(value) if isinstance(value, str) else value


def redact_each(text: str, secrets: Iterable[str]) -> str:
    """Redact only the given secrets, including encoded forms."""
    pattern = _compile_pattern(tuple(secrets))
    return text if pattern is None else pattern.sub(REDACTED, text)


@lru_cache(256)
def _compile_pattern(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    forms: set[str] = set()
    for secret in secrets:
        forms |= _encode_forms(secret)
    if not forms:
        return None
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(map(_to_pattern, longest_first)), re.IGNORECASE)


def _to_pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _MIN_EMBEDDED_LENGTH else rf"(?<![^\W_]){escaped}(?![^\W_])"


def _encode_forms(secret: str) -> set[str]:
    """Return plain, escaped and encoded forms of a secret."""
    forms = {
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        orjson.dumps(secret).decode()[1:-1],
        repr(secret)[1:-1],
    }
    for text in (secret, f"Bearer {secret}", f":{secret}"):
        for encode in (b64encode, urlsafe_b64encode):
            forms.add(encode(text.encode()).decode().rstrip("="))
    return forms


def check_url(url: str) -> str:
    """Validate an endpoint URL and return it without trailing slashes.

    Raises:
        ConfigurationError: The string is not a valid HTTP or HTTPS URL.
    """
    try:
        parts = urlsplit(url)
        # `urlsplit` only parses the port when it is accessed.
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        # `urlsplit` ignores line ends, which would otherwise reach the HTTP client.
        valid = valid and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    expected = "an http:// or https:// URL such as 'http://localhost:8000/v1'"
    check_argument("url", display_url(url), bool(valid), expected)
    return url.rstrip("/")
