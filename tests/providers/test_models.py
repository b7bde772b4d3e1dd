from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from rxloop.errors import BadRequest, ConfigurationError, ProviderTimeout, RateLimited
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.messages import Message
from rxloop.providers import (
    PRESETS,
    HTTPModel,
    Preset,
    anthropic_messages,
    google_gemini,
    openai_chat,
    openai_responses,
    resolve_model,
    routed,
)
from rxloop.providers.retry import Retry
from rxloop.providers.vendors.model_names import iter_names
from rxloop.support.redaction import display_url
from support.fake_host import FakeHost


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("zai:glm-4.6", "zai:glm-4.6"),
        ("zai", "zai:glm-4.7"),
        ("openai:gpt-5", "openai:gpt-5"),
        ("openai", "openai:gpt-5"),
        ("ollama:qwen3:8b", "ollama:qwen3:8b"),
        ("http://localhost:8000/v1#my/model", "http://localhost:8000/v1#my/model"),
        ("openai_responses:http://localhost:8000/v1#my/model", "openai_responses:http://localhost:8000/v1#my/model"),
    ],
)
def test_resolve_model_restores_a_provider_from_its_name(text: str, name: str) -> None:
    provider = resolve_model(text)
    assert provider.name == name
    assert resolve_model(provider.name).name == name
    assert resolve_model(text) is not provider


def test_model_string_with_a_url_selects_the_protocol() -> None:
    chat, responses = (resolve_model(f"{before}http://host/v1#m") for before in ("", "openai_responses:"))
    assert isinstance(chat, HTTPModel)
    assert isinstance(responses, HTTPModel)
    assert (chat.preset.wire, responses.preset.wire) == ("openai_chat", "openai_responses")
    assert openai_responses("m", base_url="http://host/v1").name == responses.name


def test_enum_member_is_accepted_as_a_model_string() -> None:
    class Models(StrEnum):
        CHAT = "http://localhost:8000/v1#m"
        RESPONSES = "openai_responses:http://localhost:8000/v1#m"

    for model in Models:
        assert resolve_model(model).name == model.value


def test_key_in_a_model_url_is_redacted_in_the_name() -> None:
    shown = display_url("openai_responses:https://u:secret@host/v1?key=secret#m")
    assert shown == "openai_responses:https://host/v1#m"
    assert resolve_model("openai_responses:https://u:secret@host/v1?key=secret#m").name == shown


def test_model_at_a_custom_url_does_not_inherit_a_price() -> None:
    assert list(iter_names("openai_responses:http://host/v1#openai/gpt-5")) == [
        "openai_responses:http://host/v1#openai/gpt-5"
    ]


def test_resolve_model_returns_a_provider_unchanged() -> None:
    provider: Provider = openai_chat("m", base_url="http://localhost/v1")
    assert resolve_model(provider) is provider


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acme:x", "zai, openai, openai_responses, openai_chat"),
        ("gpt-5", "use 'openai:gpt-5'"),
        ("claude-sonnet-4-5", "use 'anthropic:claude-sonnet-4-5'"),
        ("gemini-3.5-flash", "use 'google:gemini-3.5-flash'"),
        ("zai:", "default model"),
        ("http://localhost:8000/v1", "#model"),
        ("openai_responses:http://u:p@localhost:8000/v1", "use 'openai_responses:http://localhost:8000/v1#model'"),
        ("", "zai:glm-4.7"),
    ],
)
def test_invalid_model_string_error_shows_the_format(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resolve_model(text)


def test_invalid_url_is_rejected_at_once() -> None:
    with pytest.raises(ConfigurationError, match="localhost:8000"):
        openai_chat("m", base_url="localhost:8000/v1")
    with pytest.raises(ConfigurationError, match="no default model"):
        openai_chat(base_url="http://localhost:8000/v1")


@pytest.mark.parametrize("extra", ["\r\nx-key: 1", "\n", "\t", " b", "\x1b[2J", "\x9b", "\u202e", "\u2028", "\udc00"])
def test_url_with_control_characters_or_spaces_is_rejected(extra: str) -> None:
    for url in (f"http://localhost:8000/v1{extra}", f"http://local{extra}host/v1", f"{extra}http://localhost/v1"):
        with pytest.raises(ConfigurationError, match="url must be an http:// or https:// URL") as raised:
            openai_chat("m", base_url=url)
        assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("preset", "value", "url"),
    [
        ("ollama", "", "http://localhost:11434/v1"),
        ("ollama", "0.0.0.0", "http://0.0.0.0:11434/v1"),
        ("ollama", "box:9000", "http://box:9000/v1"),
        ("ollama", "https://box/", "https://box/v1"),
        ("openai", "http://proxy/openai/v1/", "http://proxy/openai/v1"),
        ("zai", "https://open.bigmodel.cn/api/paas/v4", "https://open.bigmodel.cn/api/paas/v4"),
    ],
)
def test_url_of_a_preset_can_be_set_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, preset: str, value: str, url: str
) -> None:
    chosen = PRESETS[preset]
    assert chosen.url_env is not None
    monkeypatch.setenv(chosen.url_env, value)
    assert chosen.url() == url


def test_custom_preset_creates_a_provider() -> None:
    acme = Preset(name="acme", base_url="https://acme.example/v1", key_env="ACME_KEY", default_model="a1")
    provider = openai_chat(preset=acme)
    assert isinstance(provider, HTTPModel)
    assert provider.name == "acme:a1"


async def test_router_selects_a_model_by_the_run_context() -> None:
    # L69
    seen: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name
            self.closed = 0

        def call(self, request: ModelRequest) -> None:
            seen.append(self.name)

        async def aclose(self) -> None:
            self.closed += 1

    small, large = Named("small"), Named("large")
    models: dict[str, Any] = {"pro": large, "free": small}
    host: Any = FakeHost()
    host.info.metadata = {"plan": "pro"}
    router = routed(lambda request: models[request.ctx.metadata["plan"]])
    request = ModelRequest(messages=[Message.user("hi")], ctx=RunContext(run=host))
    router.call(request)
    host.info.metadata = {"plan": "free"}
    router.call(request)
    assert seen == ["large", "small"]
    await router.aclose()
    assert (small.closed, large.closed) == (0, 0)  # Models passed as objects stay open.


def test_retry_delay_grows_until_the_attempts_are_exhausted() -> None:
    # L67
    retry = Retry(attempts=3, first=1, jitter=0)
    busy = RateLimited("busy")
    assert [retry.wait(busy, sent) for sent in (1, 2, 3)] == [1, 2, None]
    assert retry.wait(RateLimited("busy", retry_after=7), 1) == 7
    assert retry.wait(RateLimited("busy", retry_after=700), 1) is None
    assert retry.wait(BadRequest("no"), 1) is None
    assert retry.wait(ProviderTimeout("late"), 1) is None
    assert 0.75 <= (Retry(first=1).wait(busy, 1) or 0) <= 1


@pytest.mark.parametrize(
    ("model", "instead"),
    [
        ("claude:claude-opus-4", "anthropic:claude-opus-4"),
        ("gemini:gemini-2.5-pro", "google:gemini-2.5-pro"),
        ("cohere:x", "openrouter:"),
    ],
)
def test_unsupported_vendor_error_names_the_alternative(model: str, instead: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        resolve_model(model)
    assert instead in str(raised.value)


def test_invalid_url_error_does_not_show_secrets() -> None:
    with pytest.raises(ConfigurationError) as raised:
        resolve_model("http://user:pa55word@h/v1?key=abcd1234")
    assert "http://h/v1" in str(raised.value)
    assert "pa55word" not in str(raised.value)
    assert "abcd1234" not in str(raised.value)


@pytest.mark.parametrize("make", [anthropic_messages, google_gemini])
def test_codec_of_another_protocol_is_rejected_for_a_preset(make: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match=r"'mistral' does not support .* use .*'mistral:large'"):
        make("large", preset="mistral")


def test_azure_responses_deployment_has_a_restorable_name() -> None:
    assert openai_responses("mine", preset="azure").name == "azure_responses:mine"
