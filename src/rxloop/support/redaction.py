"""Secrets removed from messages, and URLs for display."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit, urlunsplit

import orjson

from rxloop.errors import ConfigurationError

REDACTED = "[redacted]"

SHORTEST = 4
"""Characters of the shortest secret: anything shorter would be found everywhere."""

_LONG = 8
"""From here on a secret is found inside other words, too."""

_SECRET_NAME = re.compile(r"auth|key|token|secret|password|cookie|credential|signature", re.IGNORECASE)

# Parts of these may stand in the words of others: the version of an interface, say.
_HARMLESS = re.compile(r"[\d.-]*(?:preview)?", re.IGNORECASE)

_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|csk|xai|hf|nvapi|pplx|tgp|r8|fw|ghp|gho|github_pat|glpat)[-_][\w-]{12,}"
    r"|\bAIza[\w-]{20,}|\bAKIA[0-9A-Z]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]+)?"
    r"|\b[0-9a-f]{32}\.\w{16}\b"
)

_BEARER = re.compile(r"(\bBearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)

_NAMED = re.compile(
    r"((?:api[_-]?key|token|secret|password|[?&]key|[?&]sig)[\"']?\s*[:=]\s*[\"']?)(?=[^\s\"'&,;}]*\d)[^\s\"'&,;}]{8,}",
    re.IGNORECASE,
)

_USERINFO = re.compile(r"(\bhttps?://)[^\s/@\"']{1,300}@", re.IGNORECASE)

_PROTOCOL = re.compile(r"[a-z_]+:(?=https?://)")
"""What a model string may say before an address."""


def display_url(url: str) -> str:
    """An address, or a model string, without the name, the password and the query in it, where keys may be."""
    if protocol := _PROTOCOL.match(url):
        return protocol[0] + display_url(url[protocol.end() :])
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.sub("//[^/]*@", "//", url.partition("?")[0])
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def find_secrets(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """What is secret in a request: its keys, wherever they are."""
    parts = urlsplit(url)
    found = [unquote(parts.password or "")]
    if parts.username and not parts.password:
        found.append(unquote(parts.username))
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        found += [pair, b64encode(pair.encode()).decode()]
    found += [value for _, value in parse_qsl(parts.query) if not _HARMLESS.fullmatch(value)]
    for name, value in headers.items():
        if _SECRET_NAME.search(name):
            found += [value, value.rpartition(" ")[2]]
    return tuple(dict.fromkeys(value for value in found if len(value) >= SHORTEST))


def redact_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text of somebody else's without these secrets, in whatever form, and without what looks like another one."""
    if known := _pattern(tuple(secrets)):
        text = known.sub(REDACTED, text)
    text = _USERINFO.sub(r"\1", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _LOOKS_SECRET.sub(REDACTED, text)
    return _NAMED.sub(rf"\1{REDACTED}", text)


def redact_each(text: str, secrets: Iterable[str]) -> str:
    """A text without these secrets, in whatever form; everything else stays as it is."""
    known = _pattern(tuple(secrets))
    return text if known is None else known.sub(REDACTED, text)


@lru_cache(256)
def _pattern(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    forms: set[str] = set()
    for secret in secrets:
        forms |= _forms(secret)
    if not forms:
        return None
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(map(_as_pattern, longest_first)), re.IGNORECASE)


def _as_pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _LONG else rf"(?<![^\W_]){escaped}(?![^\W_])"


def _forms(secret: str) -> set[str]:
    """A secret as a vendor may give it back: as it is, escaped, or encoded."""
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
    """Check the address of an endpoint, and take the slash off its end.

    Raises:
        ConfigurationError: It is not an http address.
    """
    try:
        parts = urlsplit(url)
        # The port is read when it is asked for.
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        shown = display_url(url)
        raise ConfigurationError(
            f"{shown!r} is not the address of an endpoint: give one like 'http://localhost:8000/v1'"
        )
    return url.rstrip("/")
