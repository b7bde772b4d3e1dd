from __future__ import annotations

import pytest

from rxloop.errors import ConfigurationError
from rxloop.providers import bedrock_url, vertex_url
from rxloop.providers.vendors.urls import vertex_anthropic_url

NAMES = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("europe-west1", "europe-west1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        (None, "aiplatform.googleapis.com"),
    ],
)
def test_vertex_url_follows_the_location(location: str | None, host: str) -> None:
    place = f"projects/p/locations/{location or 'global'}/publishers"
    assert vertex_url("p", location) == f"https://{host}/v1beta1/{place}/google"
    assert vertex_url("p", location, publisher="anthropic") == f"https://{host}/v1/{place}/anthropic"


def test_vertex_url_uses_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-east5")
    base = "https://us-east5-aiplatform.googleapis.com/v1/projects/mine/locations/us-east5/publishers/anthropic"
    assert vertex_anthropic_url() == base
    assert "/projects/other/locations/eu/" in vertex_url("other", "eu")


def test_missing_project_error_names_its_variable() -> None:
    with pytest.raises(ConfigurationError, match="set GOOGLE_CLOUD_PROJECT, or pass base_url="):
        vertex_url()


def test_bedrock_url_follows_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert bedrock_url() == "https://bedrock-runtime.us-west-2.amazonaws.com"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert bedrock_url() == "https://bedrock-runtime.eu-north-1.amazonaws.com"
    assert bedrock_url("ap-south-1") == "https://bedrock-runtime.ap-south-1.amazonaws.com"


def test_missing_region_error_names_its_variable() -> None:
    with pytest.raises(ConfigurationError, match="set AWS_REGION, or pass base_url="):
        bedrock_url()


@pytest.mark.parametrize("name", ["a/b", "x?y", "host.example#", "@evil"])
def test_project_and_region_cannot_change_the_host(name: str) -> None:
    assert vertex_url(name, name).count("/") == vertex_url("p", "l").count("/")
    for url in (vertex_url(name, name), bedrock_url(name)):
        assert not {"?", "#", "@"} & set(url)
