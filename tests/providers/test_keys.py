"""API keys from functions, and request signatures, as received by a server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from rxloop import errors
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import PRESETS, Preset, Retry, Timeouts, openai_chat
from support.http_server import REQUEST, Reply, Server, StreamResult, collect, text_reply

pytestmark = pytest.mark.usefixtures("transport")
SECRET = "top-secret-token-123"


async def ask(server: Server, request: ModelRequest = REQUEST, **options: Any) -> StreamResult:
    model = openai_chat("m", base_url=server.base_url, retry=Retry(attempts=1), **options)
    answer = await collect(model.call(request))
    await model.aclose()
    return answer


async def test_key_function_is_called_for_each_request(server: Server) -> None:
    server.answer(text_reply("ok"))
    numbers = iter(range(9))
    model = openai_chat("m", base_url=server.base_url, api_key=lambda: f"token-{next(numbers)}")
    for _ in range(2):
        assert (await collect(model.call(REQUEST))).error is None
    await model.aclose()
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer token-0", "Bearer token-1"]


async def test_key_function_may_be_async(server: Server) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return f" {SECRET}\n"

    server.answer(text_reply("ok"))
    assert (await ask(server, api_key=token)).error is None
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"


async def test_key_function_is_not_called_when_the_request_has_a_key(server: Server) -> None:
    server.answer(text_reply("ok"))
    request = ModelRequest(
        messages=[Message.user("hi")], settings=ModelSettings(headers={"Authorization": "Bearer other"})
    )
    assert (await ask(server, request, api_key=lambda: 1 / 0)).error is None
    assert server.requests[0].headers["authorization"] == "Bearer other"


def raise_now() -> str:
    raise ValueError(SECRET)


async def raise_later() -> str:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (raise_now, "raised ValueError"),
        (raise_later, "raised ValueError"),
        (lambda: None, "got a NoneType"),
        (lambda: " ", "got an empty string"),
        (SECRET.encode, "got a bytes"),
    ],
)
async def test_failing_key_function_is_an_authentication_error_without_secrets(
    server: Server, source: Any, words: str
) -> None:
    answer = await ask(server, api_key=source)
    assert type(answer.error) is errors.AuthenticationError
    assert words in str(answer.error)
    assert "no API key for m at" in str(answer.error)
    assert SECRET not in repr(answer.error)
    assert answer.error.__cause__ is None
    assert answer.error.__context__ is None
    assert server.requests == []


async def test_rxloop_error_of_a_key_function_is_passed_on(server: Server) -> None:
    def away() -> str:
        raise errors.ProviderConnectionError("the vault is away")

    answer = await ask(server, api_key=away)
    assert type(answer.error) is errors.ProviderConnectionError
    assert str(answer.error) == "the vault is away"


async def test_token_repeated_by_the_vendor_is_redacted(server: Server) -> None:
    server.answer(Reply([orjson.dumps({"error": {"message": f"bad token {SECRET}"}})], 401))
    answer = await ask(server, api_key=lambda: SECRET)
    assert type(answer.error) is errors.AuthenticationError
    assert SECRET not in str(answer.error)


async def test_call_cancelled_while_waiting_for_its_key_ends(server: Server) -> None:
    waits, ended = asyncio.Event(), asyncio.Event()

    async def never() -> str:
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    model = openai_chat("m", base_url=server.base_url, api_key=never)
    subscription = model.call(REQUEST).subscribe()
    await waits.wait()
    subscription.dispose()
    await ended.wait()
    await model.aclose()
    assert server.requests == []


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [("key", "api-key", "key"), (lambda: "token", "authorization", "Bearer token")],
    ids=["key", "token"],
)
@pytest.mark.parametrize("base", ["", "/openai/v1"])
async def test_azure_accepts_a_key_or_a_token(server: Server, key: Any, name: str, value: str, base: str) -> None:
    server.answer(text_reply("ok"))
    model = openai_chat("m", preset="azure", base_url=server.base_url.removesuffix("/v1") + base, api_key=key)
    assert (await collect(model.call(REQUEST))).error is None
    await model.aclose()
    (request,) = server.requests
    assert request.headers[name] == value
    assert ({"api-key", "authorization"} - {name}).isdisjoint(request.headers)


async def test_key_function_uses_the_key_header_of_the_vendor(server: Server) -> None:
    server.answer(text_reply("ok"))
    preset = Preset(name="mine", base_url=server.base_url, key_header="x-goog-api-key")
    assert (await ask(server, preset=preset, api_key=lambda: "k")).error is None
    assert server.requests[0].headers["x-goog-api-key"] == "k"


async def test_google_key_has_two_variables(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert PRESETS["google"].key() == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert PRESETS["google"].key() == "first"


@pytest.mark.parametrize("later", [False, True])
async def test_sign_function_adds_headers(server: Server, later: bool) -> None:
    def sign(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        assert "authorization" not in headers
        assert headers["content-type"] == "application/json"
        found = {"Authorization": f"{method} {url} {hashlib.sha256(body).hexdigest()}", "X-Date": "now"}

        async def wait() -> Mapping[str, str]:
            return found

        return wait() if later else found

    server.answer(text_reply("ok"))
    model = openai_chat("m", preset="openai", base_url=server.base_url, sign=sign)
    for _ in range(2):
        assert (await collect(model.call(REQUEST))).error is None
    await model.aclose()
    for request in server.requests:
        body = hashlib.sha256(request.raw).hexdigest()
        assert request.headers["authorization"] == f"POST {server.base_url}/chat/completions {body}"
        assert request.headers["x-date"] == "now"


@pytest.mark.parametrize(
    ("sign", "words"), [(lambda *_: 1 / 0, "raised ZeroDivisionError"), (lambda *_: "x", "got a str")]
)
async def test_request_is_not_sent_when_signing_fails(server: Server, sign: Any, words: str) -> None:
    answer = await ask(server, sign=sign)
    assert type(answer.error) is errors.AuthenticationError
    assert words in str(answer.error)
    assert server.requests == []


async def test_signature_repeated_by_the_vendor_is_redacted(server: Server) -> None:
    server.answer(Reply([orjson.dumps({"message": f"bad signature {SECRET}"})], 403))
    answer = await ask(
        server,
        sign=lambda *_: {"authorization": f"AWS4-HMAC-SHA256 Signature={SECRET}", "x-amz-security-token": SECRET},
    )
    assert type(answer.error) is errors.PermissionDenied
    assert SECRET not in str(answer.error)


def sign_badly(*_: object) -> dict[str, str]:
    return {"x-signature": f"{SECRET}\nx"}


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": f"{SECRET}é"},
        {"api_key": f"{SECRET}\nx"},
        {"api_key": lambda: f"{SECRET}\u0085x"},
        {"sign": sign_badly},
    ],
)
async def test_key_that_is_invalid_in_a_header_is_not_shown(server: Server, options: dict[str, Any]) -> None:
    error = (await ask(server, **options)).error
    assert isinstance(error, errors.ConfigurationError)
    assert ("'x-signature'" if "sign" in options else "'authorization'") in str(error)
    assert SECRET not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
    assert not server.requests


@pytest.mark.parametrize("name", ["api_key", "sign"])
async def test_hanging_function_is_named_in_the_timeout_error(server: Server, name: str) -> None:
    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    options: dict[str, Any] = {name: never}
    answer = await ask(server, timeout=Timeouts(key=0.01), **options)
    assert type(answer.error) is errors.ProviderTimeout
    assert f"the {name} function did not return within 0.01 s" in str(answer.error)
    assert "Timeouts(key=...)" in str(answer.error)
    assert server.requests == []


async def test_timeout_error_of_a_key_function_is_reported_as_its_failure(server: Server) -> None:
    async def late() -> str:
        raise TimeoutError

    answer = await ask(server, api_key=late)
    assert "the api_key function raised TimeoutError" in str(answer.error)
