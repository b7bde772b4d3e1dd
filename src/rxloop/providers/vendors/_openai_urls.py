"""The addresses of OpenAI's protocols, at OpenAI, at those who follow it, and at Azure in both of its forms."""

from __future__ import annotations

import os
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from rxloop.providers.failures._errors import Endpoint
from rxloop.providers.presets import Preset


def chat_url(preset: Preset, base: str, model: str) -> str:
    """The address of a model's chat completions.

    If the preset has an `api_version`, a `base` without a path is a resource, and the address is that of the model's
    deployment in it. A `base` that ends in `/v1` is Azure's newer interface, without deployments and versions.
    """
    scheme, host, path, query, _ = urlsplit(base)
    path = path.rstrip("/")
    if preset.api_version is not None and not path.endswith("/v1"):
        path = path or f"/openai/deployments/{quote(model, safe='')}"
        query = _with_version(query, _version(preset) or preset.api_version)
    return urlunsplit((scheme, host, f"{path}/chat/completions", query, ""))


def responses_url(preset: Preset, base: str) -> str:
    """The address of Responses.

    If the preset has an `api_version`, a `base` without a path is a resource: the address is that of Azure's newer
    interface, which knows no versions, unless the environment names a version of the older one.
    """
    scheme, host, path, query, _ = urlsplit(base)
    path = path.rstrip("/")
    if preset.api_version is not None and not path.endswith("/v1"):
        version = _version(preset)
        # A deployment is named in the body, as the model.
        path = path.partition("/deployments/")[0] or ("/openai" if version or "api-version=" in query else "/openai/v1")
        query = _with_version(query, version) if version else query
    return urlunsplit((scheme, host, f"{path}/responses", query, ""))


def over_chat(where: Endpoint) -> str | None:
    """The model string for chat completions, where an address of one's own stands in place of OpenAI's."""
    vendor, _, model = where.name.partition(":")
    if vendor not in ("openai", "openai_responses") or urlsplit(where.url).hostname == "api.openai.com":
        return None
    return f"openai_chat:{model}"


def _version(preset: Preset) -> str:
    """The version that the environment names."""
    return os.environ.get(preset.version_env or "", "").strip()


def _with_version(query: str, version: str) -> str:
    if "api-version=" in query:
        return query
    return "&".join(part for part in (query, urlencode({"api-version": version})) if part)
