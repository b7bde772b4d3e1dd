"""Environment variables that break HTTP clients, which errors of all clients must name."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog
from rxloop.client import Client
from rxloop.errors import ConfigurationError, ProviderConnectionError
from rxloop.providers import transport as _pool
from rxloop.providers.failures import Endpoint, error_from_httpx
from rxloop.server import PushOptions
from rxloop.server.a2a.push import Push
from rxloop.support.http_environment import name_variables
from rxloop.testing import ScriptedModel
from rxloop.tools.mcp import mcp
from support.http_server import REQUEST, chat_model, collect, start_server, streamed_text, text_reply

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    for name in (*NAMES, *map(str.upper, NAMES), "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
    _pool._ssl_context.cache_clear()
    yield
    _pool._ssl_context.cache_clear()


# P32
BROKEN: list[tuple[str, str, str]] = [
    ("NO_PROXY", "fe11::/16", "NO_PROXY must be .*'fe11::/16'"),
    ("no_proxy", "localhost, fe11::/16", "no_proxy must be .* the invalid entry 'fe11::/16'"),
    ("NO_PROXY", "::1/128", "entry '::1/128'"),
    ("NO_PROXY", "[::1]", "entry '\\[::1\\]'.*without brackets"),
    ("SSL_CERT_FILE", "/nowhere/ca.pem", "SSL_CERT_FILE must be .*'/nowhere/ca.pem' \\(No such file"),
    ("SSLKEYLOGFILE", "/nowhere/keys.log", "SSLKEYLOGFILE must be .*'/nowhere/keys.log' \\(No such file"),
    *(
        (name, "http://proxy:port", f"{name} must be the address of a proxy .*'http://proxy:port'")
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ),
    ("HTTPS_PROXY", "foo://proxy:80", "HTTPS_PROXY must be .*scheme http, https, socks5"),
    ("ALL_PROXY", "socks5://proxy:1080", "ALL_PROXY is 'socks5://proxy:1080'.*pip install 'httpx\\[socks\\]'"),
]


def raises_configuration_error(match: str) -> Any:
    return pytest.raises(ConfigurationError, match=match)


@pytest.mark.parametrize(("name", "value", "match"), BROKEN)
@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
async def test_model_names_the_variable_that_breaks_its_client(
    name: str, value: str, match: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server() as server:
        server.answer(text_reply("Hello"))
        model = chat_model(server, transport=transport)
        monkeypatch.setenv(name, value)
        answer = await collect(model.call(REQUEST))
        if name.lower() == "no_proxy":
            # Clients ignore this variable if no proxy is set.
            assert streamed_text(answer) == "Hello"
        else:
            with raises_configuration_error(match):
                raise answer.error or AssertionError
            assert answer.error.__cause__ is None
        monkeypatch.delenv(name)
        assert streamed_text(await collect(model.call(REQUEST))) == "Hello"
        await model.aclose()


@pytest.mark.parametrize(("name", "value", "match"), [each for each in BROKEN if each[0].lower() == "no_proxy"])
@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
async def test_model_names_the_variable_with_invalid_proxy_exceptions(
    name: str, value: str, match: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server() as server:
        monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
        monkeypatch.setenv(name, value)
        answer = await collect(chat_model(server, transport=transport).call(REQUEST))
        with raises_configuration_error(match):
            raise answer.error or AssertionError
        assert server.requests == []


@pytest.mark.parametrize(("name", "value", "match"), BROKEN)
def test_http_api_client_names_the_variable(name: str, value: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with raises_configuration_error(match):
        Client("http://127.0.0.1:9")


# The MCP client library parses NO_PROXY differently, and does not read SSLKEYLOGFILE.
@pytest.mark.parametrize(
    ("name", "value", "match"), [each for each in BROKEN if each[0] not in ("NO_PROXY", "no_proxy", "SSLKEYLOGFILE")]
)
async def test_mcp_server_names_the_variable(
    name: str, value: str, match: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(ScriptedModel("Hello"), tools=[mcp("http://127.0.0.1:9/mcp")])
    monkeypatch.setenv(name, value)
    await agent.run("?")
    assert re.search(f"cannot create the HTTP client: .*{match}", caplog.text)


# P32
@pytest.mark.parametrize(
    "value",
    [
        "http://user:pa55word@proxy:port",
        "foo://user:pa55word@proxy:80",
        "socks5://user:pa55word@proxy:1080",
        "http://user:pa55/wo?rd#@proxy:80",
        "user:pa55/word@proxy:80",
    ],
)
def test_password_of_a_proxy_is_not_in_the_message(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with raises_configuration_error("HTTPS_PROXY") as caught, name_variables():
        httpx.AsyncClient()
    assert "pa55" not in str(caught.value)
    assert caught.value.__suppress_context__


# P32
def test_lower_case_variable_is_named_when_both_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "fe11::/16")
    monkeypatch.setenv("NO_PROXY", "localhost")
    with raises_configuration_error("no_proxy must be"), name_variables():
        httpx.AsyncClient()


# P32
def test_files_without_certificates_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (empty, tmp_path):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        with raises_configuration_error(f"SSL_CERT_FILE must be a readable file .*{path}"), name_variables():
            httpx.AsyncClient()


# P32
def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(KeyError), name_variables():
        raise KeyError("x")
    with raises_configuration_error("mine"), name_variables():
        raise ConfigurationError("mine")


# P32
@pytest.mark.parametrize(
    "value", ["localhost,127.0.0.1,.example.com,10.0.0.0/8,::1,*.corp,http://inner", "*", "", " , "]
)
def test_valid_lists_of_hosts_are_accepted(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", value)
    with name_variables():
        httpx.AsyncClient()


# P32
def test_untrusted_certificate_error_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    provider_error = error_from_httpx(error, Endpoint("m", "https://host/v1"))
    assert isinstance(provider_error, ProviderConnectionError)
    assert "SSL_CERT_DIR='/nowhere'" in str(provider_error)


# P32
async def test_a2a_webhooks_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Push(MemoryEventLog(), PushOptions(), thoughts=False)
    monkeypatch.setenv("SSLKEYLOGFILE", "/nowhere/keys.log")
    gateway: Any = SimpleNamespace(is_draining=False)
    with raises_configuration_error("SSLKEYLOGFILE must be"):
        await push.start(gateway)
