"""Checks for API keys and model endpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit, urlunsplit

import orjson

from rxloop.cli.stored_keys import find_stored_key
from rxloop.errors import ConfigurationError
from rxloop.providers import HTTPModel, Preset, resolve_model
from rxloop.providers.vendors.model_names import iter_names
from rxloop.support.http_environment import name_variables
from rxloop.support.redaction import check_url, display_url

if TYPE_CHECKING:
    import httpx

    from rxloop.pipeline.interfaces import Provider


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
    message: str
    hint: str = ""
    """Suggested action."""


Findings = Iterable[Finding]

KeyState = Literal["set", "stored", "by account", "optional", "not needed", "not set"]


def get_key_variable(preset: Preset) -> str | None:
    """Return the name of the key's environment variable, preferring a variable that is set."""
    names = [name for name in (preset.key_env, preset.other_key_env) if name]
    return next((name for name in names if os.environ.get(name, "").strip()), preset.key_env)


def get_key_state(preset: Preset) -> KeyState:
    """Return the credential state of a preset, based on the environment and the stored keys.

    Raises:
        ConfigurationError: The file with stored keys is invalid.
    """
    if preset.key() is not None:
        return "set"
    if find_stored_key(preset) is not None:
        return "stored"
    if preset.key_source is not None:
        return "by account"
    if preset.key_optional:
        return "optional"
    return "not set" if preset.key_env or preset.key_hint else "not needed"


def describe_key_setup(preset: Preset) -> str:
    """Return instructions for setting the API key."""
    setting = f"export {preset.key_env}=..., or rxloop keys set {preset.key_env}" if preset.key_env else ""
    return ", or ".join(part for part in (setting, preset.key_hint) if part)


TIMEOUT = 5.0
"""Endpoint timeout in seconds."""


async def check_endpoint(model: str) -> Findings:
    """Check a model's endpoint by listing models free of charge."""
    try:
        preset, url = resolve_endpoint(model)
    except ConfigurationError as error:
        return [Finding(Grade.bad, f"cannot call the model {display_url(model)}", str(error))]
    return [await _request_models(preset, _make_list_url(preset, url), model)]


OFFLINE = "offline:demo"
"""Model string of the offline model. Its rules are not recorded, so only `--model` and `RXLOOP_MODEL` accept it."""


def make_offline_model() -> Provider:
    """Return the offline model, which has rules for weather tools and arithmetic."""
    # Imported lazily, because most commands call other models.
    from rxloop.demo import OfflineModel

    return OfflineModel(delay=0.02).provider()


def resolve_endpoint(model: str) -> tuple[Preset, str]:
    """Return the preset and endpoint for a model string.

    Raises:
        ConfigurationError: The model is unknown or lacks a URL.
    """
    provider = resolve_model(model)
    # `resolve_model` always returns an `HTTPModel` for strings.
    preset = cast("HTTPModel", provider).preset
    return preset, check_url(model.partition("#")[0]) if "://" in model else preset.url()


def _make_list_url(preset: Preset, url: str) -> str:
    """Return the URL for listing a vendor's models."""
    scheme, host, path, query, _ = urlsplit(url)
    path, parameters = path.rstrip("/"), ""
    match preset.wire:
        case "anthropic_messages":
            path, parameters = path if path.endswith("/v1") else f"{path}/v1", "limit=1000"
        case "google_gemini":
            path, parameters = path or "/v1beta", "pageSize=1000"
        case _:
            pass
    return urlunsplit((scheme, host, f"{path}/models", "&".join(filter(None, (query, parameters))), ""))


async def _request_models(preset: Preset, url: str, model: str) -> Finding:
    import httpx

    key = preset.key() or find_stored_key(preset)
    bearer = preset.key_header == "authorization"
    headers = {} if key is None else {preset.key_header: f"Bearer {key}" if bearer else key}
    if preset.wire == "anthropic_messages":
        from rxloop.providers.codecs.anthropic import VERSION

        headers["anthropic-version"] = VERSION
    display = display_url(url)
    started = time.monotonic()
    try:
        with name_variables():
            client = httpx.AsyncClient(timeout=TIMEOUT)
        async with client:
            response = await client.get(url, headers={**preset.headers, **headers})
    except ConfigurationError as error:
        return Finding(Grade.bad, str(error), "correct or unset the environment variable")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        reason = str(error) or type(error).__name__
        hint = preset.hint or "check the URL and the proxy settings (HTTPS_PROXY)"
        return Finding(Grade.bad, f"{display} does not respond: {reason}", hint)
    summary = f"{display} responded with {response.status_code} in {time.monotonic() - started:.2f} s"
    return _assess_response(preset, model, summary, response)


def _assess_response(preset: Preset, model: str, summary: str, response: httpx.Response) -> Finding:
    status = response.status_code
    if status in (401, 403) and get_key_state(preset) == "by account":
        return Finding(Grade.good, f"{summary}: reachable; account not checked")
    if status in (401, 403):
        variable = get_key_variable(preset)
        hint = f"set {variable} to a valid key" if variable else preset.key_hint or "a key is required"
        return Finding(Grade.bad, f"{summary}: the key was rejected", hint)
    if status >= 500:
        return Finding(Grade.bad, summary, "the vendor's server failed; try again later")
    if status != 200:
        # Not all endpoints can list models. The response shows that the endpoint is reachable.
        return Finding(Grade.good, f"{summary}: reachable; models cannot be listed")
    model_ids = _parse_model_ids(response.content)
    name = model.rpartition("#")[2] if "://" in model else model.partition(":")[2] or str(preset.default_model)
    # Some vendors only list dated model names.
    if model_ids and not any(f"{preset.name}:{name}" in iter_names(f"{preset.name}:{each}") for each in model_ids):
        listed = ", ".join(sorted(model_ids)[:8]) + (", ..." if len(model_ids) > 8 else "")
        return Finding(Grade.note, f"{summary}, but does not list {name!r}", f"listed models: {listed}")
    return Finding(Grade.good, summary)


def _parse_model_ids(body: bytes) -> set[str]:
    """Parse model ids from a response."""
    try:
        data: Any = orjson.loads(body)
        # Google uses different field names.
        models = data["data"] if "data" in data else data["models"]
        return {str(model.get("id") or model["name"]).removeprefix("models/") for model in models}
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return set()
