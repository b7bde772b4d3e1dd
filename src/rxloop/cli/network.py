"""Whether the endpoint of a model can be reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit, urlunsplit

import orjson

from rxloop.cli.finding import Finding, Findings, Grade
from rxloop.cli.keys import key_state, key_variable
from rxloop.errors import ConfigurationError
from rxloop.providers import HTTPModel, Preset, resolve_model
from rxloop.providers._secrets import shown_address
from rxloop.providers.presets import checked_url
from rxloop.providers.vendors._model_names import names_of

if TYPE_CHECKING:
    import httpx

SECONDS = 5.0
"""How long the endpoint has to answer."""


async def reached(model: str) -> Findings:
    """Ask the endpoint of the model for its models, which costs nothing, and say what it answers."""
    try:
        preset, url = endpoint(model)
    except ConfigurationError as error:
        return [Finding(Grade.bad, f"{shown_address(model)} is not a model that can be called", str(error))]
    return [await _called(preset, _list(preset, url), model)]


def endpoint(model: str) -> tuple[Preset, str]:
    """Return the preset of a model string, and the address of its endpoint.

    Raises:
        ConfigurationError: There is no such model, or it has no address.
    """
    provider = resolve_model(model)
    # A string is always resolved to one of these.
    preset = cast("HTTPModel", provider).preset
    return preset, checked_url(model.partition("#")[0]) if "://" in model else preset.url()


def _list(preset: Preset, url: str) -> str:
    """The address at which a vendor lists its models."""
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
        from rxloop.providers.anthropic._wire import VERSION

        headers["anthropic-version"] = VERSION
    shown = shown_address(url)
    begun = time.monotonic()
    try:
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            answer = await client.get(url, headers={**preset.headers, **headers})
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        # An OSError is a file of certificates that cannot be read.
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
        # Not every endpoint lists its models; that it answers is what was asked.
        return Finding(Grade.good, f"{took}: it is there, and does not list its models")
    known = _names(answer.content)
    name = model.rpartition("#")[2] if "://" in model else model.partition(":")[2] or str(preset.default_model)
    # Some list a model under its dated name alone.
    if known and not any(f"{preset.name}:{name}" in names_of(f"{preset.name}:{each}") for each in known):
        listed = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
        return Finding(Grade.note, f"{took}, and does not list {name!r}", f"it lists {listed}")
    return Finding(Grade.good, took)


def _names(body: bytes) -> set[str]:
    """Read the ids of the models in an answer."""
    try:
        found: Any = orjson.loads(body)
        # Google has its own words.
        listed = found["data"] if "data" in found else found["models"]
        return {str(model.get("id") or model["name"]).removeprefix("models/") for model in listed}
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return set()
