from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import PRESETS, HTTPModel, Preset, openai_chat, resolve_model
from rxloop.providers.vendors.urls import chat_url, responses_url
from support.http_server import REQUEST, Server, collect, text_reply

ALL = sorted(PRESETS)
CHAT = [name for name in ALL if PRESETS[name].wire in ("openai", "openai_chat")]
# Documented URLs, which match the recordings if any exist.
ADDRESSES = {
    "zai": "https://api.z.ai/api/paas/v4/chat/completions",
    "openai": "https://api.openai.com/v1/chat/completions",
    "openai_chat": "https://api.openai.com/v1/chat/completions",
    "openai_responses": "https://api.openai.com/v1/responses",
    "anthropic": "https://api.anthropic.com/v1/messages",
    "deepseek": "https://api.deepseek.com/chat/completions",
    "mistral": "https://api.mistral.ai/v1/chat/completions",
    "xai": "https://api.x.ai/v1/chat/completions",
    "moonshot": "https://api.moonshot.ai/v1/chat/completions",
    "google": "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse",
    "vertex": "https://europe-west1-aiplatform.googleapis.com/v1beta1/projects/p/locations/europe-west1/publishers"
    "/google/models/m:streamGenerateContent?alt=sse",
    "vertex_anthropic": "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/publishers"
    "/anthropic/models/m:streamRawPredict",
    "bedrock": "https://bedrock-runtime.eu-north-1.amazonaws.com/model/m/invoke-with-response-stream",
    "google_chat": "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
    "openrouter": "https://openrouter.ai/api/v1/chat/completions",
    "groq": "https://api.groq.com/openai/v1/chat/completions",
    "together": "https://api.together.xyz/v1/chat/completions",
    "cerebras": "https://api.cerebras.ai/v1/chat/completions",
    "huggingface": "https://router.huggingface.co/v1/chat/completions",
    "vercel": "https://ai-gateway.vercel.sh/v1/chat/completions",
    "ollama": "http://localhost:11434/v1/chat/completions",
    "llama_cpp": "http://localhost:8080/v1/chat/completions",
    "vllm": "http://localhost:8000/v1/chat/completions",
    "lm_studio": "http://localhost:1234/v1/chat/completions",
}
AZURE = PRESETS["azure"]
LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}}, strict=True)
EVERYTHING = ModelRequest(
    messages=[
        Message.user("hi"),
        Message(
            role="assistant",
            reasoning="hmm",
            tool_calls=(ToolCall(id="a", name="look"),),
            provider_state={"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        ),
        Message.tool("a", "a cat"),
    ],
    tools=(LOOK,),
    settings=ModelSettings(max_tokens=9, seed=7, parallel_tool_calls=False, reasoning_effort="low"),
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for preset in PRESETS.values():
        for name in (preset.url_env, preset.version_env, preset.key_env):
            if name is not None:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")


async def receive_body(preset: Preset, server: Server, request: ModelRequest = REQUEST) -> dict[str, Any]:
    server.answer(text_reply("ok"))
    provider = openai_chat("m", preset=preset, base_url=server.base_url, api_key="k")
    assert (await collect(provider.call(request))).error is None
    await provider.aclose()
    return server.requests[-1].body


@pytest.mark.parametrize("name", ALL)
def test_preset_has_its_documented_url(name: str) -> None:
    preset = PRESETS[name]
    assert preset.name == name
    if PRESETS[name].base_url is not None:
        made = resolve_model(f"{name}:m")
        assert isinstance(made, HTTPModel)
        assert made._wire.url(preset.url()) == ADDRESSES[name]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", ALL)
def test_model_string_with_a_preset_name_creates_a_provider(name: str) -> None:
    assert resolve_model(f"{name}:org/model:tag").name == f"{name}:org/model:tag"
    default = PRESETS[name].default_model
    if default is not None:
        assert resolve_model(name).name == f"{name}:{default}"
    else:
        with pytest.raises(ConfigurationError, match="no default model"):
            resolve_model(name)


@pytest.mark.parametrize("name", CHAT)
async def test_unsupported_options_are_not_sent(name: str, server: Server) -> None:
    preset = PRESETS[name]
    body = await receive_body(preset, server, EVERYTHING)
    assert ("stream_options" in body) == preset.stream_options
    assert ("parallel_tool_calls" in body) == preset.parallel_tool_calls
    assert ("strict" in body["tools"][0]["function"]) == preset.strict
    assert (body[preset.max_tokens_field], body[preset.seed_field]) == (9, 7)
    assert len({"max_tokens", "max_completion_tokens"} & body.keys()) == 1
    assert len({"seed", "random_seed"} & body.keys()) == 1
    assert [field for field in ("reasoning_effort", "reasoning", "thinking") if field in body] == [preset.effort]


@pytest.mark.parametrize("name", CHAT)
async def test_reasoning_is_sent_back_only_where_supported(name: str, server: Server) -> None:
    # L65
    preset = PRESETS[name]
    message = (await receive_body(preset, server, EVERYTHING))["messages"][1]
    back = {field for field in message if "reasoning" in field}
    wanted = {preset.reasoning_field} - {None} | ({"reasoning_details"} if preset.reasoning_details else set())
    assert back == wanted


def test_presets_that_require_reasoning_in_the_history_send_it() -> None:
    assert {name for name in ALL if PRESETS[name].reasoning_field} == {"zai", "deepseek", "moonshot", "llama_cpp"}
    assert {name for name in ALL if PRESETS[name].reasoning_details} == {"openrouter", "vercel"}


async def test_custom_preset_needs_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE_KEY", "secret")
    server.answer(text_reply("ok"))
    provider = openai_chat("m", preset=Preset(name="mine", base_url=server.base_url, key_env="MINE_KEY"))
    assert isinstance(provider, HTTPModel)
    assert provider.name == "mine:m"
    assert (await collect(provider.call(REQUEST))).error is None
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    await provider.aclose()


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://r.openai.azure.com", "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"),
        ("https://r.openai.azure.com/", "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"),
        (
            "https://r.openai.azure.com/openai/deployments/other",
            "/openai/deployments/other/chat/completions?api-version=2024-10-21",
        ),
        (
            "https://r.openai.azure.com?api-version=2025-01-01",
            "/openai/deployments/my%20gpt/chat/completions?api-version=2025-01-01",
        ),
        ("https://r.openai.azure.com/openai/v1/", "/openai/v1/chat/completions"),
    ],
)
def test_azure_chat_url_has_deployment_and_version(base: str, url: str) -> None:
    assert chat_url(AZURE, base, "my gpt") == "https://r.openai.azure.com" + url


@pytest.mark.parametrize(
    ("base", "version", "url"),
    [
        ("", "", "/openai/v1/responses"),
        ("", "2025-04-01-preview", "/openai/responses?api-version=2025-04-01-preview"),
        ("?api-version=2025-05-01", "2025-04-01-preview", "/openai/responses?api-version=2025-05-01"),
        ("/openai/v1", "2025-04-01-preview", "/openai/v1/responses"),
        ("/openai/deployments/x", "2025-04-01-preview", "/openai/responses?api-version=2025-04-01-preview"),
    ],
)
def test_azure_responses_url_may_have_a_version(
    base: str, version: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    assert responses_url(AZURE, "https://r.openai.azure.com" + base) == "https://r.openai.azure.com" + url


def test_openai_supports_responses() -> None:
    assert responses_url(PRESETS["openai"], "https://api.openai.com/v1") == "https://api.openai.com/v1/responses"


async def test_azure_is_configured_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.base_url.removesuffix("/v1"))
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-03-01-preview")
    server.answer(text_reply("ok"))
    provider = resolve_model("azure:gpt")
    assert (await collect(provider.call(REQUEST))).error is None
    got = server.requests[0]
    assert got.path == "/openai/deployments/gpt/chat/completions?api-version=2025-03-01-preview"
    assert got.headers["api-key"] == "secret"
    assert "authorization" not in got.headers
    await provider.aclose()


async def test_azure_accepts_a_token_instead_of_a_key(server: Server) -> None:
    server.answer(text_reply("ok"))
    provider = openai_chat("m", preset="azure", base_url=server.base_url, headers={"Authorization": "Bearer token"})
    assert (await collect(provider.call(REQUEST))).error is None
    assert server.requests[0].headers["authorization"] == "Bearer token"
    assert "api-key" not in server.requests[0].headers
    await provider.aclose()


async def test_missing_azure_url_error_names_the_variable() -> None:
    answer = await collect(openai_chat("m", preset="azure").call(REQUEST))
    assert isinstance(answer.error, ConfigurationError)
    assert "AZURE_OPENAI_ENDPOINT" in str(answer.error)


async def test_query_of_a_url_is_kept(server: Server) -> None:
    server.answer(text_reply("ok"))
    provider = openai_chat("m", base_url=server.base_url + "?tenant=a")
    await collect(provider.call(REQUEST))
    assert server.requests[0].path == "/v1/chat/completions?tenant=a"
    await provider.aclose()
