from __future__ import annotations

import httpx
import orjson
import pytest

from rxloop import errors
from rxloop.providers._errors import Endpoint
from rxloop.providers.chat._errors import from_error_object, from_response

WHERE = Endpoint("ollama:qwen3", "http://localhost:11434/v1/chat/completions", "THE_KEY", "Start it.")


def fail(status: int, error: object, **headers: str) -> errors.ProviderError:
    body = error if isinstance(error, bytes) else orjson.dumps({"error": error})
    return from_response(status, httpx.Headers(headers), body, WHERE)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "no", "type": "invalid_request_error"}, errors.BadRequest),
        (400, {"message": "too long", "code": "context_length_exceeded"}, errors.ContextLengthExceeded),
        (400, {"message": "This model's maximum context length is 8192 tokens."}, errors.ContextLengthExceeded),
        (500, {"message": "the request exceeds the available context size"}, errors.ContextLengthExceeded),
        (400, {"message": "filtered", "code": "content_filter"}, errors.ContentFiltered),
        (401, {"message": "no", "code": "invalid_api_key"}, errors.AuthenticationError),
        (402, {"message": "pay"}, errors.PermissionDenied),
        (403, {"message": "no"}, errors.PermissionDenied),
        (404, {"message": "no such model"}, errors.UnknownModel),
        (408, {"message": "slow"}, errors.ProviderTimeout),
        (422, "validation", errors.BadRequest),
        (429, {"message": "the context window of tokens per minute"}, errors.RateLimited),
        (429, {"message": "no money", "code": "insufficient_quota"}, errors.PermissionDenied),
        (429, {"message": "Rate limit", "code": "1302"}, errors.RateLimited),
        (500, {"message": "oops"}, errors.ServerError),
        (502, b"<html>Bad gateway</html>", errors.ServerError),
        (503, b"", errors.Overloaded),
        (529, {"message": "busy"}, errors.Overloaded),
        (302, b"", errors.ProviderProtocolError),
    ],
)
def test_a_refusal_becomes_the_error_that_says_most(status: int, error: object, kind: type[Exception]) -> None:
    found = fail(status, error)
    assert type(found) is kind
    assert found.status == status


def test_an_error_says_who_answered_what() -> None:
    text = str(fail(401, {"message": "wrong key"}))
    assert "ollama:qwen3 at http://localhost:11434/v1/chat/completions answered 401 Unauthorized: wrong key" in text
    assert "THE_KEY" in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"error": "b"}, "b"),
        ({"detail": "c"}, "c"),
        ({"code": 500, "msg": "d"}, "d"),
        ({"error": {"message": "e", "metadata": {"raw": "the reason"}}}, "e: the reason"),
        ({"detail": [{"loc": "f"}]}, '[{"loc":"f"}]'),
    ],
)
def test_the_words_of_the_vendor_are_found_wherever_they_stand(body: object, words: str) -> None:
    assert str(from_response(500, {}, orjson.dumps(body), WHERE)).endswith(f": {words}")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"code": 429, "message": "slow down"}, errors.RateLimited, 429),
        ({"type": "overloaded_error", "message": "busy"}, errors.Overloaded, None),
        ({"type": "invalid_request_error", "status_code": 400, "message": "no"}, errors.BadRequest, 400),
        ({"type": "invalid_request_error", "message": "no"}, errors.BadRequest, None),
        ({"message": "oops"}, errors.ServerError, None),
        ("oops", errors.ServerError, None),
    ],
)
def test_an_error_inside_an_answer_is_read_by_its_code(
    error: object, kind: type[Exception], status: int | None
) -> None:
    found = from_error_object(error, WHERE)
    assert type(found) is kind
    assert found.status == status


def test_the_wait_that_the_vendor_asks_for_is_kept() -> None:
    assert fail(429, "slow", **{"retry-after": "7"}).retry_after == 7
