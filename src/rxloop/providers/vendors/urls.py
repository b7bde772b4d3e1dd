"""Endpoint URLs of OpenAI and compatible servers, Azure, Vertex AI and Bedrock."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from rxloop.errors import ConfigurationError
from rxloop.providers.failures import Endpoint
from rxloop.providers.vendors import Preset

_MULTI_REGIONS = ("us", "eu")


def vertex_url(
    project: str | None = None,
    location: str | None = None,
    *,
    publisher: Literal["google", "anthropic"] = "google",
) -> str:
    """Return the Vertex AI URL for `base_url=`.

    Example:
        >>> vertex_url("my-project", "europe-west1")
        'https://europe-west1-aiplatform.googleapis.com/v1beta1/projects/my-project/locations/europe-west1/publishers/google'

    Args:
        project: Google Cloud project, defaulting to `GOOGLE_CLOUD_PROJECT`.
        location: Region, defaulting to `GOOGLE_CLOUD_LOCATION` or `global`.
        publisher: Model publisher.

    Raises:
        ConfigurationError: The project is missing.
    """
    project = project or _from_environment("GOOGLE_CLOUD_PROJECT")
    if not project:
        raise ConfigurationError(
            "models on Vertex need a project: set GOOGLE_CLOUD_PROJECT, or pass base_url=vertex_url(project, location)"
        )
    location = location or _from_environment("GOOGLE_CLOUD_LOCATION") or "global"
    if location == "global":
        host = "aiplatform.googleapis.com"
    elif location in _MULTI_REGIONS:
        host = f"aiplatform.{location}.rep.googleapis.com"
    else:
        host = f"{quote(location, safe='')}-aiplatform.googleapis.com"
    # These versions are used by the SDKs of the two publishers.
    version = "v1beta1" if publisher == "google" else "v1"
    path = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}"
    return f"https://{host}/{version}/{path}/publishers/{publisher}"


def vertex_anthropic_url() -> str:
    """Return the Vertex AI URL for Anthropic models.

    Raises:
        ConfigurationError: The project is missing.
    """
    return vertex_url(publisher="anthropic")


def bedrock_url(region: str | None = None) -> str:
    """Return the Amazon Bedrock URL for `base_url=`.

    Example:
        >>> bedrock_url("eu-central-1")
        'https://bedrock-runtime.eu-central-1.amazonaws.com'

    Args:
        region: AWS region, defaulting to `AWS_REGION` or `AWS_DEFAULT_REGION`.

    Raises:
        ConfigurationError: The region is missing.
    """
    region = region or _from_environment("AWS_REGION") or _from_environment("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError(
            "models on Bedrock need a region: set AWS_REGION, or pass base_url=bedrock_url(region)"
        )
    return f"https://bedrock-runtime.{quote(region, safe='')}.amazonaws.com"


def _from_environment(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None


def chat_url(preset: Preset, base: str, model: str) -> str:
    """Return the chat completions URL.

    If the preset has an `api_version` and `base` has no path, the deployment URL is used. URLs ending with `/v1` refer
    to Azure's newer interface without deployments or versions.
    """
    scheme, host, path, query, _ = urlsplit(base)
    path = path.rstrip("/")
    if preset.api_version is not None and not path.endswith("/v1"):
        path = path or f"/openai/deployments/{quote(model, safe='')}"
        query = _with_version(query, _version(preset) or preset.api_version)
    return urlunsplit((scheme, host, f"{path}/chat/completions", query, ""))


def responses_url(preset: Preset, base: str) -> str:
    """Return the Responses API URL.

    If the preset has an `api_version` and `base` has no path, Azure's newer interface is used, unless the environment
    specifies an older version.
    """
    scheme, host, path, query, _ = urlsplit(base)
    path = path.rstrip("/")
    if preset.api_version is not None and not path.endswith("/v1"):
        version = _version(preset)
        # Deployments are specified in the body.
        path = path.partition("/deployments/")[0] or ("/openai" if version or "api-version=" in query else "/openai/v1")
        query = _with_version(query, version) if version else query
    return urlunsplit((scheme, host, f"{path}/responses", query, ""))


def over_chat(endpoint: Endpoint) -> str | None:
    """Return the model string for chat completions if a custom URL replaces OpenAI's, otherwise None."""
    vendor, _, model = endpoint.name.partition(":")
    if vendor not in ("openai", "openai_responses") or urlsplit(endpoint.url).hostname == "api.openai.com":
        return None
    return f"openai_chat:{model}"


def _version(preset: Preset) -> str:
    """Return the version from the environment, or an empty string."""
    return os.environ.get(preset.version_env or "", "").strip()


def _with_version(query: str, version: str) -> str:
    if "api-version=" in query:
        return query
    return "&".join(part for part in (query, urlencode({"api-version": version})) if part)
