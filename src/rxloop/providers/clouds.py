"""The addresses of models in the clouds of Google and Amazon, which depend on a project and a place."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import quote

from rxloop.errors import ConfigurationError

_MULTI_REGIONS = ("us", "eu")


def vertex_url(
    project: str | None = None,
    location: str | None = None,
    *,
    publisher: Literal["google", "anthropic"] = "google",
) -> str:
    """The address of the models on Google's Vertex AI, for `base_url=`.

    Example:
        >>> vertex_url("my-project", "europe-west1")
        'https://europe-west1-aiplatform.googleapis.com/v1beta1/projects/my-project/locations/europe-west1/publishers/google'

    Args:
        project: The project that pays; None takes `GOOGLE_CLOUD_PROJECT` from the environment.
        location: Where the models run; None takes `GOOGLE_CLOUD_LOCATION`, and `global` without that.
        publisher: Whose models they are.

    Raises:
        ConfigurationError: No project is named.
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
    # Those that the SDKs of the two use.
    version = "v1beta1" if publisher == "google" else "v1"
    place = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}"
    return f"https://{host}/{version}/{place}/publishers/{publisher}"


def vertex_anthropic_url() -> str:
    """The address of Anthropic's models on Vertex AI, from the environment.

    Raises:
        ConfigurationError: No project is named.
    """
    return vertex_url(publisher="anthropic")


def bedrock_url(region: str | None = None) -> str:
    """The address of the models on Amazon's Bedrock, for `base_url=`.

    Example:
        >>> bedrock_url("eu-central-1")
        'https://bedrock-runtime.eu-central-1.amazonaws.com'

    Args:
        region: Where the models run; None takes `AWS_REGION`, or `AWS_DEFAULT_REGION`, from the environment.

    Raises:
        ConfigurationError: No region is named.
    """
    region = region or _from_environment("AWS_REGION") or _from_environment("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError(
            "models on Bedrock need a region: set AWS_REGION, or pass base_url=bedrock_url(region)"
        )
    return f"https://bedrock-runtime.{quote(region, safe='')}.amazonaws.com"


def _from_environment(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None
