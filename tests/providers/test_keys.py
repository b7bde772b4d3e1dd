"""Keys that a function gives, and signatures, as a server gets them."""

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


async def asked(server: Server, request: ModelRequest = REQUEST, **options: Any) -> StreamResult:
    model = openai_chat("m", base_url=server.base_url, retry=Retry(attempts=1), **options)
    answer = await collect(model.call(request))
    await model.aclose()
    return answer


async def test_a_function_gives_the_key_of_each_request(server: Server) -> None:
    server.answer(text_reply("ok"))
    numbers = iter(range(9))
    model = openai_chat("m", base_url=server.base_url, api_key=lambda: f"token-{next(numbers)}")
    for _ in range(2):
        assert (await collect(model.call(REQUEST))).error is None
    await model.aclose()
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer token-0", "Bearer token-1"]


async def test_a_function_may_have_to_wait_for_the_key(server: Server) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return f" {SECRET}\n"

    server.answer(text_reply("ok"))
    assert (await asked(server, api_key=token)).error is None
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"


async def test_a_key_that_the_request_has_already_is_not_asked_for(server: Server) -> None:
    server.answer(text_reply("ok"))
    request = ModelRequest(
        messages=[Message.user("hi")], settings=ModelSettings(headers={"Authorization": "Bearer other"})
    )
    assert (await asked(server, request, api_key=lambda: 1 / 0)).error is None
    assert server.requests[0].headers["authorization"] == "Bearer other"


def raises() -> str:
    raise ValueError(SECRET)


async def raises_later() -> str:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (raises, "raised ValueError"),
        (raises_later, "raised ValueError"),
        (lambda: None, "got a NoneType"),
        (lambda: " ", "got an empty string"),
        (SECRET.encode, "got a bytes"),
    ],
)
async def test_a_function_that_gives_no_key_is_an_error_that_leaks_nothing(
    server: Server, source: Any, words: str
) -> None:
    answer = await asked(server, api_key=source)
    assert type(answer.error) is errors.AuthenticationError
    assert words in str(answer.error)
    assert "no API key for m at" in str(answer.error)
    assert SECRET not in repr(answer.error)
    assert answer.error.__cause__ is None
    assert answer.error.__context__ is None
    assert server.requests == []


async def test_an_error_of_the_tree_that_a_function_raises_is_that_error(server: Server) -> None:
    def away() -> str:
        raise errors.ProviderConnectionError("the vault is away")

    answer = await asked(server, api_key=away)
    assert type(answer.error) is errors.ProviderConnectionError
    assert str(answer.error) == "the vault is away"


async def test_a_token_that_the_vendor_repeats_is_not_shown(server: Server) -> None:
    server.answer(Reply([orjson.dumps({"error": {"message": f"bad token {SECRET}"}})], 401))
    answer = await asked(server, api_key=lambda: SECRET)
    assert type(answer.error) is errors.AuthenticationError
    assert SECRET not in str(answer.error)


async def test_a_call_that_is_cancelled_while_it_waits_for_its_key_ends(server: Server) -> None:
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
async def test_azure_takes_a_key_or_a_token_of_its_accounts(
    server: Server, key: Any, name: str, value: str, base: str
) -> None:
    server.answer(text_reply("ok"))
    model = openai_chat("m", preset="azure", base_url=server.base_url.removesuffix("/v1") + base, api_key=key)
    assert (await collect(model.call(REQUEST))).error is None
    await model.aclose()
    (request,) = server.requests
    assert request.headers[name] == value
    assert ({"api-key", "authorization"} - {name}).isdisjoint(request.headers)


async def test_any_other_vendor_gets_what_a_function_gives_where_its_keys_go(server: Server) -> None:
    server.answer(text_reply("ok"))
    preset = Preset(name="mine", base_url=server.base_url, key_header="x-goog-api-key")
    assert (await asked(server, preset=preset, api_key=lambda: "k")).error is None
    assert server.requests[0].headers["x-goog-api-key"] == "k"


async def test_google_s_key_has_two_names(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert PRESETS["google"].key() == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert PRESETS["google"].key() == "first"


@pytest.mark.parametrize("later", [False, True])
async def test_a_function_signs_what_is_sent(server: Server, later: bool) -> None:
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
async def test_a_request_that_is_not_signed_is_not_sent(server: Server, sign: Any, words: str) -> None:
    answer = await asked(server, sign=sign)
    assert type(answer.error) is errors.AuthenticationError
    assert words in str(answer.error)
    assert server.requests == []


async def test_a_signature_that_the_vendor_repeats_is_not_shown(server: Server) -> None:
    server.answer(Reply([orjson.dumps({"message": f"bad signature {SECRET}"})], 403))
    answer = await asked(
        server,
        sign=lambda *_: {"authorization": f"AWS4-HMAC-SHA256 Signature={SECRET}", "x-amz-security-token": SECRET},
    )
    assert type(answer.error) is errors.PermissionDenied
    assert SECRET not in str(answer.error)


def signs_badly(*_: object) -> dict[str, str]:
    return {"x-signature": f"{SECRET}\nx"}


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": f"{SECRET}é"},
        {"api_key": f"{SECRET}\nx"},
        {"api_key": lambda: f"{SECRET}\u0085x"},
        {"sign": signs_badly},
    ],
)
async def test_a_key_that_no_header_takes_is_named_by_its_header_and_not_shown(
    server: Server, options: dict[str, Any]
) -> None:
    error = (await asked(server, **options)).error
    assert isinstance(error, errors.ConfigurationError)
    assert ("'x-signature'" if "sign" in options else "'authorization'") in str(error)
    assert SECRET not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
    assert not server.requests


@pytest.mark.parametrize("name", ["api_key", "sign"])
async def test_a_function_that_hangs_is_named_by_the_error_that_ends_it(server: Server, name: str) -> None:
    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    options: dict[str, Any] = {name: never}
    answer = await asked(server, timeout=Timeouts(key=0.01), **options)
    assert type(answer.error) is errors.ProviderTimeout
    assert f"the {name} function did not return within 0.01 s" in str(answer.error)
    assert "Timeouts(key=...)" in str(answer.error)
    assert server.requests == []


async def test_a_timeout_of_the_function_s_own_is_its_own_failure(server: Server) -> None:
    async def late() -> str:
        raise TimeoutError

    answer = await asked(server, api_key=late)
    assert "the api_key function raised TimeoutError" in str(answer.error)
