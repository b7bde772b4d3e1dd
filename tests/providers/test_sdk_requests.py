"""Requests to cloud endpoints, compared with the requests of the vendors' SDKs."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex
from google.genai import Client
from google.oauth2.credentials import Credentials

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import (
    HTTPModel,
    Retry,
    anthropic_messages,
    google_gemini,
    openai_chat,
    openai_responses,
    vertex_url,
)
from support.http_server import REQUEST, Received, Server, collect, text_reply

pytestmark = [
    pytest.mark.usefixtures("transport"),
    # The client of Google uses aiohttp in a deprecated way.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
HI: Any = [{"role": "user", "content": "hi"}]
KEYS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "anthropic-beta", "content-type")
VERSION = "2025-04-01-preview"
ONCE = Retry(attempts=1)
"""Retries are disabled, because most models cannot parse the answer."""
NINE = replace(REQUEST, settings=ModelSettings(max_tokens=9))


async def receive_from_sdk(server: Server, call: Awaitable[Any]) -> Received:
    """Send a request with an SDK, ignoring its result."""
    with suppress(Exception):
        async for _ in await call:
            pass
    return server.requests[-1]


async def receive_from_rxloop(server: Server, model: HTTPModel, request: ModelRequest = REQUEST) -> Received:
    """Return the request that we send."""
    await collect(model.call(request))
    await model.aclose()
    return server.requests[-1]


def assert_same(one: Received, other: Received, *but: str) -> None:
    """Compare URL, key and body, except for some fields."""
    assert one.path == other.path
    assert {name: one.headers.get(name) for name in KEYS} == {name: other.headers.get(name) for name in KEYS}
    bodies = [{name: value for name, value in each.body.items() if name not in but} for each in (one, other)]
    assert bodies[0] == bodies[1]


def root(server: Server) -> str:
    return server.base_url.removesuffix("/v1")


def to_local(server: Server, url: str) -> str:
    """Return a cloud URL with the server as its host."""
    return root(server) + urlsplit(url).path


def key() -> str:
    return "token"


@pytest.mark.parametrize("token", [False, True])
async def test_azure_deployment_request_matches_the_sdk(
    server: Server, token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", VERSION)
    server.answer(text_reply("ok"))
    auth: Any = {"azure_ad_token_provider": key} if token else {"api_key": "key"}
    async with openai.AsyncAzureOpenAI(azure_endpoint=root(server), max_retries=0, **auth) as client:
        expected = await receive_from_sdk(server, client.chat.completions.create(model="gpt", messages=HI, stream=True))
    model = openai_chat("gpt", preset="azure", base_url=root(server), api_key=key if token else "key", retry=ONCE)
    # We request the usage of a stream.
    assert_same(expected, await receive_from_rxloop(server, model), "stream_options")


async def test_azure_v1_request_matches_the_sdk(server: Server) -> None:
    server.answer(text_reply("ok"))
    base = root(server) + "/openai/v1"

    async def token() -> str:
        return key()

    async with openai.AsyncOpenAI(base_url=base, api_key=token, max_retries=0) as client:
        expected = await receive_from_sdk(server, client.chat.completions.create(model="gpt", messages=HI, stream=True))
    model = openai_chat("gpt", preset="azure", base_url=base, api_key=key, retry=ONCE)
    assert_same(expected, await receive_from_rxloop(server, model), "stream_options")


async def test_gemini_on_vertex_request_matches_the_sdk(server: Server) -> None:
    server.answer(text_reply("ok"))
    client = Client(
        vertexai=True,
        project="my-project",
        location="europe-west1",
        credentials=Credentials(key()),
        http_options={"base_url": root(server)},
    ).aio
    expected = await receive_from_sdk(
        server, client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi")
    )
    await client.aclose()
    base = to_local(server, vertex_url("my-project", "europe-west1"))
    assert_same(
        expected,
        await receive_from_rxloop(
            server, google_gemini("gemini-2.5-flash", preset="vertex", base_url=base, api_key=key, retry=ONCE)
        ),
    )


async def test_gemini_request_matches_the_sdk(server: Server) -> None:
    server.answer(text_reply("ok"))
    client = Client(api_key="key", http_options={"base_url": root(server), "api_version": "v1beta"}).aio
    expected = await receive_from_sdk(
        server, client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi")
    )
    await client.aclose()
    assert_same(
        expected,
        await receive_from_rxloop(
            server, google_gemini("gemini-2.5-flash", base_url=root(server), api_key="key", retry=ONCE)
        ),
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_claude_on_vertex_request_matches_the_sdk(server: Server, stream: bool) -> None:
    server.answer(text_reply("ok"))
    model, place = "claude-sonnet-4-5@20250929", ("my-project", "europe-west1")
    async with AsyncAnthropicVertex(
        base_url=root(server) + "/v1", project_id=place[0], region=place[1], access_token=key(), max_retries=0
    ) as client:
        call = client.messages.create(model=model, max_tokens=9, messages=HI, stream=stream)
        expected = await receive_from_sdk(server, call)
    base = to_local(server, vertex_url(*place, publisher="anthropic"))
    provider = anthropic_messages(
        model, preset="vertex_anthropic", base_url=base, api_key=key, stream=stream, retry=ONCE
    )
    got = await receive_from_rxloop(server, provider, NINE)
    # Google documents this version.
    assert got.body["anthropic_version"] == "vertex-2023-10-16"
    assert_same(expected, got, "anthropic_version", "messages", *(() if stream else ("stream",)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "model",
    ["anthropic.claude-sonnet-4-5-20250929-v1:0", "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude"],
)
async def test_claude_on_bedrock_request_matches_the_sdk(server: Server, stream: bool, model: str) -> None:
    server.answer(text_reply("ok"))
    async with AsyncAnthropicBedrock(
        base_url=root(server), aws_region="us-east-1", api_key="key", max_retries=0
    ) as client:
        call = client.beta.messages.create(model=model, max_tokens=9, messages=HI, stream=stream, betas=["one", "two"])
        expected = await receive_from_sdk(server, call)
    provider = anthropic_messages(
        model, preset="bedrock", base_url=root(server), api_key="key", stream=stream, retry=ONCE
    )
    request = replace(NINE, settings=ModelSettings(max_tokens=9, headers={"anthropic-beta": "one,two"}))
    got = await receive_from_rxloop(server, provider, request)
    assert got.body["anthropic_version"] == "bedrock-2023-05-31"
    assert_same(expected, got, "anthropic_version", "messages")


async def test_betas_are_in_the_body_for_bedrock_and_in_a_header_for_vertex(server: Server) -> None:
    server.answer(text_reply("ok"))
    bodies: list[Any] = []
    for preset in ("bedrock", "vertex_anthropic"):
        provider = anthropic_messages(
            "m", preset=preset, base_url=root(server), api_key="key", betas=["one", "two"], retry=ONCE
        )
        got = await receive_from_rxloop(server, provider)
        bodies.append((got.body.get("anthropic_beta"), got.headers.get("anthropic-beta")))
    assert bodies == [(["one", "two"], None), (None, "one,two")]


@pytest.mark.parametrize("base", ["", "/openai/v1"])
async def test_azure_responses_request_matches_the_sdk(
    server: Server, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", VERSION)
    server.answer(text_reply("ok"))
    client: openai.AsyncOpenAI = (
        openai.AsyncOpenAI(base_url=root(server) + base, api_key=key(), max_retries=0)
        if base
        else openai.AsyncAzureOpenAI(azure_endpoint=root(server), azure_ad_token=key(), max_retries=0)
    )
    async with client:
        expected = await receive_from_sdk(
            server, client.responses.create(model="gpt", input=HI, stream=True, store=False)
        )
    provider = openai_responses("gpt", preset="azure_responses", base_url=root(server) + base, api_key=key, retry=ONCE)
    assert_same(expected, await receive_from_rxloop(server, provider), "input", "include", "reasoning")
