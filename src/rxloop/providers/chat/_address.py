"""Where the requests for a model go."""

from __future__ import annotations

import os
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

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
        if "api-version=" not in query:
            version = os.environ.get(preset.version_env or "", "").strip() or preset.api_version
            query = "&".join(part for part in (query, urlencode({"api-version": version})) if part)
    return urlunsplit((scheme, host, f"{path}/chat/completions", query, ""))
