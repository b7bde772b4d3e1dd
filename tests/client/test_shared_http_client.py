"""Several API clients with one httpx client, and redirects."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rxloop import Agent, op
from rxloop.client import Client
from rxloop.errors import ApiError, ConfigurationError
from rxloop.testing import ScriptedModel
from support.api_server import serve_api, serve_app


def make_clerk(*answers: str) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*answers), name="clerk")


async def test_clients_of_one_httpx_client_keep_their_own_tokens() -> None:
    async with serve_api(make_clerk("Hello Ann.", "Hello Bob.")) as served, httpx.AsyncClient() as http:
        ann = Client(served.url, token="ann-key", http=http)
        bob = Client(served.url, token="bob-key", http=http)
        run = await ann.start(None, "Hi", wait=10)
        other = await bob.start(None, "Hi", wait=10)
        assert (await served.runtime.get_record(run.task_id)).owner == "ann"
        assert (await served.runtime.get_record(other.task_id)).owner == "bob"
        assert "".join([text async for text in ann.follow(run.task_id).pipe(op.text())]) == "Hello Ann."
        with pytest.raises(ApiError, match="404"):
            _ = [event async for event in bob.follow(run.task_id)]


async def test_clients_of_one_httpx_client_keep_their_own_servers() -> None:
    async with (
        serve_api(make_clerk("First.")) as first,
        serve_api(make_clerk("Second.")) as second,
        httpx.AsyncClient(base_url="http://127.0.0.1:9/unused") as http,
    ):
        clients = [Client(each.url, token="ann-key", http=http) for each in (first, second)]
        runs = [await each.start(None, "Hi", wait=10) for each in clients]
        assert [each.content for each in runs] == ["First.", "Second."]
        assert str(http.base_url) == "http://127.0.0.1:9/unused/"


async def test_client_without_a_token_sends_no_token_of_another_client() -> None:
    async with serve_api(make_clerk("Hello.")) as served, httpx.AsyncClient() as http:
        await Client(served.url, token="ann-key", http=http).agents()
        with pytest.raises(ApiError, match="401"):
            await Client(served.url, http=http).agents()
        assert "authorization" not in http.headers


@pytest.mark.parametrize("prefix", ["", "/", "/api", "/api/", "/a%2Fb"])
async def test_base_url_keeps_its_path_prefix(prefix: str) -> None:
    paths: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return httpx.Response(200, json={"agents": []})

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
        await Client(f"http://agents.test{prefix}", http=http).agents()
    assert paths == [f"{prefix.rstrip('/')}/agents"]


@pytest.mark.parametrize(
    "url",
    ["agents.test/api", "/api", "", "ftp://agents.test", "http://", "http://a:b", "http://a\r\n/", "http://a/\udc00"],
)
async def test_url_that_is_not_absolute_is_rejected(url: str) -> None:
    async with httpx.AsyncClient(base_url="http://other.test") as http:
        with pytest.raises(ConfigurationError, match=r"url must be an absolute http or https URL"):
            Client(url, token="ann-key", http=http)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_another_host_gets_neither_the_token_nor_the_request(status: int) -> None:
    received: list[str | None] = []

    async def receive(request: Request) -> Response:
        received.append(request.headers.get("authorization"))
        return Response("{}", media_type="application/json")

    async with serve_app(Starlette(routes=[Route("/{path:path}", receive, methods=["GET", "POST"])])) as target:

        async def redirect(request: Request) -> Response:
            return RedirectResponse(f"{target}/stolen", status)

        async with (
            serve_app(Starlette(routes=[Route("/{path:path}", redirect, methods=["GET", "POST"])])) as url,
            httpx.AsyncClient(follow_redirects=True) as http,
        ):
            client = Client(url, token="ann-key", http=http)
            for request in (client.agents(), client.start(None, "Hi"), client.follow("run").pipe(op.text())):
                with pytest.raises(ApiError, match=rf"{status}: .*redirects to '{target}/stolen'.*Client\(url\)"):
                    await request
    assert received == []
