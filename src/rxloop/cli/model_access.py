"""Checks for API keys and model endpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit, urlunsplit

import orjson

from rxloop.errors import ConfigurationError
from rxloop.providers import HTTPModel, Preset, resolve_model
from rxloop.providers.vendors.model_names import iter_names
from rxloop.support.http_environment import name_variables
from rxloop.support.redaction import check_url, display_url

if TYPE_CHECKING:
    import httpx


class Grade(Enum):
    """Severity of a finding."""

    good = "good"
    note = "note"
    """Additional information."""
    bad = "bad"
    """A required component does not work."""


class Finding(NamedTuple):
    """Result of a single check."""

    grade: Grade
    says: str
    hint: str = ""
    """Suggested action."""


Findings = Iterable[Finding]

KeyState = Literal["set", "by account", "optional", "not needed", "not set"]


def key_variable(preset: Preset) -> str | None:
    """Return the name of the key's environment variable, preferring a variable that is set."""
    names = [name for name in (preset.key_env, preset.other_key_env) if name]
    return next((name for name in names if os.environ.get(name, "").strip()), preset.key_env)


def key_state(preset: Preset) -> KeyState:
    """Return the credential state of a preset, based on the environment."""
    if preset.key() is not None:
        return "set"
    if preset.key_source is not None:
        return "by account"
    if preset.key_optional:
        return "optional"
    return "not set" if preset.key_env or preset.key_hint else "not needed"


def how_to_get_in(preset: Preset) -> str:
    """Return instructions for the "not set" state."""
    setting = f"export {preset.key_env}=..." if preset.key_env else ""
    return ", or ".join(part for part in (setting, preset.key_hint) if part)


SECONDS = 5.0
"""Endpoint timeout in seconds."""


async def reached(model: str) -> Findings:
    """Check a model's endpoint by listing its models, which is free."""
    try:
        preset, url = endpoint(model)
    except ConfigurationError as error:
        return [Finding(Grade.bad, f"{display_url(model)} is not a model that can be called", str(error))]
    return [await _called(preset, _list(preset, url), model)]


def endpoint(model: str) -> tuple[Preset, str]:
    """Return the preset and endpoint for a model string.

    Raises:
        ConfigurationError: The model does not exist or has no URL.
    """
    provider = resolve_model(model)
    # `resolve_model` always returns an `HTTPModel` for strings.
    preset = cast("HTTPModel", provider).preset
    return preset, check_url(model.partition("#")[0]) if "://" in model else preset.url()


def _list(preset: Preset, url: str) -> str:
    """Return the URL for listing a vendor's models."""
    scheme, host, path, query, _ = urlsplit(url)
    path, more = path.rstrip("/"), ""
    match preset.wire:
        case "anthropic_messages":
            path, more = path if path.endswith("/v1") else f"{path}/v1", "limit=1000"
        case "google_gemini":
            path, more = path or "/v1beta", "pageSize=1000"
        case _:
            pass
    return urlunsplit((scheme, host, f"{path}/models", "&".join(filter(None, (query, more))), ""))


async def _called(preset: Preset, url: str, model: str) -> Finding:
    import httpx

    key = preset.key()
    bearer = preset.key_header == "authorization"
    headers = {} if key is None else {preset.key_header: f"Bearer {key}" if bearer else key}
    if preset.wire == "anthropic_messages":
        from rxloop.providers.codecs.anthropic import VERSION

        headers["anthropic-version"] = VERSION
    shown = display_url(url)
    begun = time.monotonic()
    try:
        with name_variables():
            client = httpx.AsyncClient(timeout=SECONDS)
        async with client:
            answer = await client.get(url, headers={**preset.headers, **headers})
    except ConfigurationError as error:
        return Finding(Grade.bad, str(error), "correct the environment variable, or unset it")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        said = str(error) or type(error).__name__
        hint = preset.hint or "see whether the address is right, and whether a proxy stands between (HTTPS_PROXY)"
        return Finding(Grade.bad, f"{shown} does not answer: {said}", hint)
    took = f"{shown} answers {answer.status_code}, in {time.monotonic() - begun:.2f} s"
    return _answered(preset, model, took, answer)


def _answered(preset: Preset, model: str, took: str, answer: httpx.Response) -> Finding:
    status = answer.status_code
    if status in (401, 403) and key_state(preset) == "by account":
        return Finding(Grade.good, f"{took}: it is there; the account was not tried")
    if status in (401, 403):
        variable = key_variable(preset)
        hint = f"set {variable} to a key that is valid there" if variable else preset.key_hint or "it wants a key"
        return Finding(Grade.bad, f"{took}: it refuses the key", hint)
    if status >= 500:
        return Finding(Grade.bad, took, "the vendor's server failed: try again later")
    if status != 200:
        # Not all endpoints can list models. The response shows that the endpoint is reachable.
        return Finding(Grade.good, f"{took}: it is there, and does not list its models")
    known = _names(answer.content)
    name = model.rpartition("#")[2] if "://" in model else model.partition(":")[2] or str(preset.default_model)
    # Some vendors only list dated model names.
    if known and not any(f"{preset.name}:{name}" in iter_names(f"{preset.name}:{each}") for each in known):
        listed = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
        return Finding(Grade.note, f"{took}, and does not list {name!r}", f"it lists {listed}")
    return Finding(Grade.good, took)


def _names(body: bytes) -> set[str]:
    """Parse model ids from a response."""
    try:
        found: Any = orjson.loads(body)
        # Google uses different field names.
        listed = found["data"] if "data" in found else found["models"]
        return {str(model.get("id") or model["name"]).removeprefix("models/") for model in listed}
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return set()
