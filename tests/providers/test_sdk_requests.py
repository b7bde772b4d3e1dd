"""What the vendors' own SDKs send to the clouds, and what we send there: to a server that keeps both."""

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
    # Google's client does what aiohttp would rather that it did not.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
HI: Any = [{"role": "user", "content": "hi"}]
KEYS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "anthropic-beta", "content-type")
VERSION = "2025-04-01-preview"
ONCE = Retry(attempts=1)
"""Most of these models can read nothing of the answer, and would ask again in a second."""
NINE = replace(REQUEST, settings=ModelSettings(max_tokens=9))


async def theirs(server: Server, call: Awaitable[Any]) -> Received:
    """The request that an SDK makes; what it thinks of the answer does not matter."""
    with suppress(Exception):
        async for _ in await call:
            pass
    return server.requests[-1]


async def ours(server: Server, model: HTTPModel, request: ModelRequest = REQUEST) -> Received:
    """The request that we make."""
    await collect(model.call(request))
    await model.aclose()
    return server.requests[-1]


def same(one: Received, other: Received, *but: str) -> None:
    """See that two requests go to the same place with the same key, and say the same but for some fields."""
    assert one.path == other.path
    assert {name: one.headers.get(name) for name in KEYS} == {name: other.headers.get(name) for name in KEYS}
    bodies = [{name: value for name, value in each.body.items() if name not in but} for each in (one, other)]
    assert bodies[0] == bodies[1]


def root(server: Server) -> str:
    return server.base_url.removesuffix("/v1")


def at(server: Server, url: str) -> str:
    """An address of a cloud's, with the server in place of its host."""
    return root(server) + urlsplit(url).path


def key() -> str:
    return "token"


@pytest.mark.parametrize("token", [False, True])
async def test_a_deployment_of_azure_s_gets_what_its_sdk_sends(
    server: Server, token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", VERSION)
    server.answer(text_reply("ok"))
    auth: Any = {"azure_ad_token_provider": key} if token else {"api_key": "key"}
    async with openai.AsyncAzureOpenAI(azure_endpoint=root(server), max_retries=0, **auth) as client:
        expected = await theirs(server, client.chat.completions.create(model="gpt", messages=HI, stream=True))
    model = openai_chat("gpt", preset="azure", base_url=root(server), api_key=key if token else "key", retry=ONCE)
    # The usage of a stream is asked for.
    same(expected, await ours(server, model), "stream_options")


async def test_azure_s_newer_interface_gets_what_the_sdk_sends_there(server: Server) -> None:
    server.answer(text_reply("ok"))
    base = root(server) + "/openai/v1"

    async def token() -> str:
        return key()

    async with openai.AsyncOpenAI(base_url=base, api_key=token, max_retries=0) as client:
        expected = await theirs(server, client.chat.completions.create(model="gpt", messages=HI, stream=True))
    model = openai_chat("gpt", preset="azure", base_url=base, api_key=key, retry=ONCE)
    same(expected, await ours(server, model), "stream_options")


async def test_gemini_on_vertex_gets_what_its_sdk_sends(server: Server) -> None:
    server.answer(text_reply("ok"))
    client = Client(
        vertexai=True,
        project="my-project",
        location="europe-west1",
        credentials=Credentials(key()),
        http_options={"base_url": root(server)},
    ).aio
    expected = await theirs(server, client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi"))
    await client.aclose()
    base = at(server, vertex_url("my-project", "europe-west1"))
    same(
        expected,
        await ours(server, google_gemini("gemini-2.5-flash", preset="vertex", base_url=base, api_key=key, retry=ONCE)),
    )


async def test_gemini_of_google_s_own_gets_what_its_sdk_sends(server: Server) -> None:
    server.answer(text_reply("ok"))
    client = Client(api_key="key", http_options={"base_url": root(server), "api_version": "v1beta"}).aio
    expected = await theirs(server, client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi"))
    await client.aclose()
    same(
        expected,
        await ours(server, google_gemini("gemini-2.5-flash", base_url=root(server), api_key="key", retry=ONCE)),
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_claude_on_vertex_gets_what_its_sdk_sends(server: Server, stream: bool) -> None:
    server.answer(text_reply("ok"))
    model, place = "claude-sonnet-4-5@20250929", ("my-project", "europe-west1")
    async with AsyncAnthropicVertex(
        base_url=root(server) + "/v1", project_id=place[0], region=place[1], access_token=key(), max_retries=0
    ) as client:
        call = client.messages.create(model=model, max_tokens=9, messages=HI, stream=stream)
        expected = await theirs(server, call)
    base = at(server, vertex_url(*place, publisher="anthropic"))
    provider = anthropic_messages(
        model, preset="vertex_anthropic", base_url=base, api_key=key, stream=stream, retry=ONCE
    )
    got = await ours(server, provider, NINE)
    # The version is the one that Google's pages ask for, and the one that the answers are read by.
    assert got.body["anthropic_version"] == "vertex-2023-10-16"
    same(expected, got, "anthropic_version", "messages", *(() if stream else ("stream",)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "model",
    ["anthropic.claude-sonnet-4-5-20250929-v1:0", "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude"],
)
async def test_claude_on_bedrock_gets_what_its_sdk_sends(server: Server, stream: bool, model: str) -> None:
    server.answer(text_reply("ok"))
    async with AsyncAnthropicBedrock(
        base_url=root(server), aws_region="us-east-1", api_key="key", max_retries=0
    ) as client:
        call = client.beta.messages.create(model=model, max_tokens=9, messages=HI, stream=stream, betas=["one", "two"])
        expected = await theirs(server, call)
    provider = anthropic_messages(
        model, preset="bedrock", base_url=root(server), api_key="key", stream=stream, retry=ONCE
    )
    request = replace(NINE, settings=ModelSettings(max_tokens=9, headers={"anthropic-beta": "one,two"}))
    got = await ours(server, provider, request)
    assert got.body["anthropic_version"] == "bedrock-2023-05-31"
    same(expected, got, "anthropic_version", "messages")


async def test_betas_of_a_model_stand_in_the_body_of_bedrock_and_in_a_header_of_vertex(server: Server) -> None:
    server.answer(text_reply("ok"))
    bodies: list[Any] = []
    for preset in ("bedrock", "vertex_anthropic"):
        provider = anthropic_messages(
            "m", preset=preset, base_url=root(server), api_key="key", betas=["one", "two"], retry=ONCE
        )
        got = await ours(server, provider)
        bodies.append((got.body.get("anthropic_beta"), got.headers.get("anthropic-beta")))
    assert bodies == [(["one", "two"], None), (None, "one,two")]


@pytest.mark.parametrize("base", ["", "/openai/v1"])
async def test_azure_s_responses_get_what_the_sdk_sends(
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
        expected = await theirs(server, client.responses.create(model="gpt", input=HI, stream=True, store=False))
    provider = openai_responses("gpt", preset="azure_responses", base_url=root(server) + base, api_key=key, retry=ONCE)
    same(expected, await ours(server, provider), "input", "include", "reasoning")
