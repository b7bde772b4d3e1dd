"""Secrets never appear in errors, names or reprs, over real sockets."""

from __future__ import annotations

import base64
import traceback
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest

from rxloop import Agent
from rxloop.errors import ConfigurationError, RunError
from rxloop.providers import Preset, fallback, hedge, limited, openai_chat
from rxloop.storage import MemoryEventLog
from rxloop.support.redaction import display_url, find_secrets, redact_secrets
from support.http_server import REQUEST, Reply, Server, chat_model, collect, delta, sse

pytestmark = pytest.mark.usefixtures("transport")

KEY = "MARK3R-key/with+signs="
PASSWORD = "MARK3R-pa55"
QUERY = "MARK3R-query"
FORMS = [
    KEY,
    quote(KEY, safe=""),
    base64.b64encode(KEY.encode()).decode(),
    base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    KEY.upper(),
    f"Bearer {KEY}",
    PASSWORD,
    QUERY,
    base64.b64encode(f"user:{PASSWORD}".encode()).decode(),
]
JSON = "application/json"


def make_secret_url(server: Server) -> str:
    return server.base_url.replace("://", f"://user:{PASSWORD}@") + f"?key={QUERY}"


def format_all(error: BaseException | None) -> str:
    """Format an exception and its causes."""
    found: list[str] = []
    seen: set[int] = set()
    left: list[Any] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found += [str(each), repr(each)]
        if isinstance(each, httpx.Request):
            found += [str(each.url), str(each.headers.raw)]
        if isinstance(each, BaseException):
            found += traceback.format_exception(each)
            left += [each.__cause__, each.__context__, getattr(each, "_request", None), *each.args]
    return "\n".join(found)


def assert_clean(told: str) -> None:
    assert "MARK3R" not in told
    for form in FORMS:
        assert form.lower() not in told.lower(), form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["message", "text", "metadata", "in the stream", "no JSON", "cut", "location"])
async def test_secret_echoed_by_a_vendor_is_redacted(server: Server, form: str, where: str) -> None:
    words = f"the key {form} is no good"
    replies = {
        "message": Reply([orjson.dumps({"error": {"message": words, "code": 400}})], 400, content_type=JSON),
        "text": Reply([words.encode()], 500, content_type="text/plain"),
        "metadata": Reply([orjson.dumps({"error": {"message": "no", "metadata": {"raw": words}}})], 502),
        "in the stream": Reply(sse(delta(content="x"), {"error": {"message": words}})),
        "no JSON": Reply([b"data: " + words.encode() + b"\n\n"]),
        "cut": Reply([b"x" * 990 + b" " + words.encode()], 500, content_type="text/plain"),
        "location": Reply([], 307, headers={"location": f"http://other/?x={form}"}),
    }
    server.answer(replies[where])
    model = chat_model(server, api_key=KEY, headers={"x-api-key": KEY})
    model = openai_chat(
        "m", base_url=make_secret_url(server), api_key=KEY, headers={"x-api-key": KEY}, retry=model._retry
    )
    answer = await collect(model.call(REQUEST))
    await model.aclose()
    assert answer.error is not None
    assert_clean(format_all(answer.error))


async def test_connection_error_shows_neither_url_nor_key() -> None:
    model = openai_chat("m", base_url=f"http://user:{PASSWORD}@127.0.0.1:1/v1?key={QUERY}", api_key=KEY)
    answer = await collect(model.call(REQUEST))
    await model.aclose()
    assert "http://127.0.0.1:1/v1" in str(answer.error)
    assert_clean(format_all(answer.error))


async def test_secret_url_of_a_run_is_not_in_the_stream_or_log(server: Server) -> None:
    server.answer(Reply([orjson.dumps({"error": {"message": f"{KEY} {PASSWORD}"}})], 401, content_type=JSON))
    log = MemoryEventLog()
    model = openai_chat("m", base_url=make_secret_url(server), api_key=KEY)
    async with Agent(model, log=log) as agent:
        run = agent.run("hi")
        with pytest.raises(RunError) as raised:
            await run
        kept = await log.read(run.task_id)
    await model.aclose()
    assert [event for event in kept if getattr(event, "model", None) == f"{server.base_url}#m"]
    assert_clean("".join(event.to_json().decode() for event in kept))
    assert_clean(format_all(raised.value))


@pytest.mark.parametrize(
    "make", [lambda m: m, fallback, lambda m: hedge(m, m, after=1), lambda m: limited(m, concurrent=1)]
)
def test_name_and_repr_of_a_provider_have_no_secrets(make: Any) -> None:
    preset = Preset(name="mine", base_url=f"https://u:{PASSWORD}@h/v1", headers={"x-key": KEY})
    for model in (
        openai_chat("m", base_url=f"https://u:{PASSWORD}@h/v1?key={QUERY}", api_key=KEY),
        openai_chat("m", preset=preset, api_key=KEY),
    ):
        made = make(model)
        assert_clean(f"{made.name} {made!r} {model!r} {preset!r}")


def test_invalid_url_error_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError) as raised:
        openai_chat("m", base_url=f"ftp://user:{PASSWORD}@h/v1?key={QUERY}")
    assert_clean(format_all(raised.value))
    monkeypatch.setenv("OLLAMA_HOST", f"http://user:{PASSWORD}@[bad?key={QUERY}")
    with pytest.raises(ConfigurationError) as raised:
        openai_chat("m", preset="ollama").preset.url()
    assert_clean(str(raised.value))


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abcdefghijklmnop1234.",
        "Authorization: Bearer abcdefgh12345678",
        "see https://name:word@host/path",
        "api_key=abc123def456 is wrong",
        '{"token": "abc123def456"}',
        "AIzaSyA1234567890abcdefghijklm",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "0123456789abcdef0123456789abcdef.abcdefgh12345678",
    ],
)
def test_text_that_looks_like_a_key_is_redacted(text: str) -> None:
    shown = redact_secrets(text)
    for part in ("abcdefgh", "name:word", "abc123def456", "1234567890", "eyJhbGci"):
        assert part not in shown


@pytest.mark.parametrize(
    "text",
    [
        "maximum context length is 8192 tokens, but you sent 12000 tokens: 8000 in the messages",
        "request id req_0123456789abcdef",
        "invalid value for 'temperature': 3",
        "see https://host/docs/errors?code=400",
        "The skill-based task-runner failed",
    ],
)
def test_other_text_is_not_redacted(text: str) -> None:
    assert redact_secrets(text, ["key1"]) == text


def test_short_secret_is_redacted_only_as_a_word() -> None:
    assert redact_secrets("abcd, abcdef; abcd", ["abcd"]) == "[redacted], abcdef; [redacted]"


def test_secrets_of_a_request_are_found_in_its_url_and_headers() -> None:
    found = find_secrets("http://u:pw%2F12@h/v1?key=abcd&api-version=2024-10-21", {"authorization": "Bearer k3y-k3y"})
    assert {"pw/12", "u:pw/12", "abcd", "k3y-k3y"} <= set(found)
    assert "2024-10-21" not in found


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@h:1/v1?key=x#m", "http://h:1/v1#m"),
        ("zai:glm-4.7", "zai:glm-4.7"),
        ("http://u:p@[bad/v1?key=x", "http://[bad/v1"),
    ],
)
def test_display_url_has_no_secrets(url: str, shown: str) -> None:
    assert display_url(url) == shown


def test_repeated_names_of_secrets_are_searched_in_linear_time() -> None:
    # Without a limit, each name is followed by a search for a digit in the rest of the text.
    assert redact_secrets("token=a" * 60_000).startswith("token=a")
