from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import errors
from rxloop.providers.error_responses import error_from_response, from_error_object, name_request
from rxloop.providers.failures import Endpoint

WHERE = Endpoint("ollama:qwen3", "http://localhost:11434/v1/chat/completions", "THE_KEY", "Start it.")


def fail(status: int, error: object, **headers: str) -> errors.ProviderError:
    body = error if isinstance(error, bytes) else orjson.dumps({"error": error})
    return error_from_response(status, httpx.Headers(headers), body, WHERE)


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
def test_openai_refusal_becomes_the_most_specific_error(status: int, error: object, kind: type[Exception]) -> None:
    found = fail(status, error)
    assert type(found) is kind
    assert found.status == status


def test_error_names_the_model_the_url_and_the_status() -> None:
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
def test_vendor_message_is_found_in_each_format(body: object, words: str) -> None:
    assert str(error_from_response(500, {}, orjson.dumps(body), WHERE)).endswith(f": {words}")


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
def test_error_in_an_answer_is_classified_by_its_code(error: object, kind: type[Exception], status: int | None) -> None:
    found = from_error_object(error, WHERE)
    assert type(found) is kind
    assert found.status == status


def test_retry_after_is_stored() -> None:
    assert fail(429, "slow", **{"retry-after": "7"}).retry_after == 7


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # Anthropic
        (400, {"type": "invalid_request_error", "message": "max_tokens: required"}, errors.BadRequest),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 5 maximum"}, "length"),
        (400, {"message": "input length and `max_tokens` exceed context limit: 9 + 2 > 10, decrease it"}, "length"),
        (400, {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}, "filter"),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low to access"}, "denied"),
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}, "length"),
        (404, {"type": "not_found_error", "message": "model: claude-0"}, errors.UnknownModel),
        (500, {"type": "api_error", "message": "Internal server error"}, errors.ServerError),
        (504, {"type": "timeout_error", "message": "Request timed out"}, errors.ProviderTimeout),
        (529, {"type": "overloaded_error", "message": "Overloaded"}, errors.Overloaded),
        # Google
        (400, {"code": 400, "message": "The input token count (9) exceeds the maximum number of tokens"}, "length"),
        (400, {"message": "Unable to submit: the input token count is 9 but model only supports up to 5"}, "length"),
        (400, {"code": 400, "message": "Request payload size exceeds the limit: 20971520 bytes."}, "length"),
        (400, {"code": 400, "message": "API key not valid. Please pass a valid API key."}, errors.AuthenticationError),
        (403, {"code": 403, "status": "PERMISSION_DENIED", "message": "unregistered callers"}, "denied"),
        (429, {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "check your plan"}, errors.RateLimited),
        (503, {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}, errors.Overloaded),
        (504, {"code": 504, "status": "DEADLINE_EXCEEDED", "message": "late"}, errors.ProviderTimeout),
        (500, {"code": 500, "status": "INTERNAL", "message": "oops"}, errors.ServerError),
        # OpenAI's Responses
        (400, {"code": None, "type": "invalid_request_error", "message": "exceeds the context window of it"}, "length"),
        (400, {"code": "model_not_found", "type": "invalid_request_error", "message": "no"}, errors.UnknownModel),
        (400, {"code": "invalid_prompt", "message": "your prompt was flagged as potentially violating"}, "filter"),
        (400, {"code": "invalid_prompt", "message": "no such prompt"}, errors.BadRequest),
        (413, {"code": "rate_limit_exceeded", "message": "reduce your message size"}, "length"),
    ],
)
def test_vendor_refusal_becomes_the_most_specific_error(status: int, body: object, kind: type[Exception] | str) -> None:
    short = {
        "length": errors.ContextLengthExceeded,
        "filter": errors.ContentFiltered,
        "denied": errors.PermissionDenied,
    }
    found = fail(status, body)
    assert type(found) is (short[kind] if isinstance(kind, str) else kind)
    assert found.status == status


def detail(kind: str, **fields: object) -> dict[str, object]:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def google(code: int, status: str, *details: object, message: str = "no") -> dict[str, object]:
    return {"code": code, "status": status, "message": message, "details": list(details)}


def test_invalid_google_key_is_recognised_by_the_reason_in_the_details() -> None:
    found = fail(400, google(400, "INVALID_ARGUMENT", detail("ErrorInfo", reason="API_KEY_INVALID")))
    assert type(found) is errors.AuthenticationError


@pytest.mark.parametrize(
    ("quota", "kind"),
    [
        ("GenerateRequestsPerMinutePerProjectPerModel", errors.RateLimited),
        ("GenerateRequestsPerDayPerProjectPerModel-FreeTier", errors.PermissionDenied),
    ],
)
def test_exhausted_daily_quota_is_not_retryable(quota: str, kind: type[Exception]) -> None:
    failure = detail("QuotaFailure", violations=[{"quotaId": quota}])
    assert type(fail(429, google(429, "RESOURCE_EXHAUSTED", failure))) is kind


def test_nested_google_error_keeps_its_code_and_details() -> None:
    # Vertex repeats the message in nested lists.
    error = {**google(429, "RESOURCE_EXHAUSTED", detail("RetryInfo", retryDelay="13s")), "errors": [{"message": "no"}]}
    found = from_error_object([{"error": error}], WHERE)
    assert type(found) is errors.RateLimited
    assert (found.status, found.retry_after) == (429, 13)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ThrottlingException", errors.RateLimited),
        ("ExpiredTokenException", errors.AuthenticationError),
        ("AccessDeniedException", errors.PermissionDenied),
        ("ModelNotReadyException", errors.Overloaded),
        ("ModelErrorException", errors.ServerError),
        ("ResourceNotFoundException", errors.UnknownModel),
        ("ValidationException", errors.BadRequest),
    ],
)
def test_aws_error_is_recognised_by_its_name_in_a_header_or_stream(name: str, kind: type[Exception]) -> None:
    body = orjson.dumps({"message": "no"})
    headers = {"x-amzn-errortype": f"{name}:http://internal.amazon.com/coral/"}
    assert type(error_from_response(400, headers, body, WHERE)) is kind
    assert type(error_from_response(400, {}, orjson.dumps({"__type": f"com.amazon.coral#{name}"}), WHERE)) is kind
    streamed = {"type": "error", "error": {"type": name[0].lower() + name[1:], "message": "no"}}
    assert type(from_error_object(streamed, WHERE)) is kind


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Input is too long for requested model.", errors.ContextLengthExceeded),
        ("The provided model identifier is invalid.", errors.UnknownModel),
    ],
)
def test_aws_validation_error_is_classified_by_its_message(message: str, kind: type[Exception]) -> None:
    headers = {"x-amzn-errortype": "ValidationException"}
    assert type(error_from_response(400, headers, orjson.dumps({"message": message}), WHERE)) is kind


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None, "sequence_number": 3},
        {"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "slow down"}},
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow down"}},
        },
    ],
)
def test_failure_in_a_responses_stream_is_read_in_all_forms(event: object) -> None:
    found = from_error_object(event, WHERE)
    assert type(found) is errors.RateLimited
    assert str(found).endswith("answered with an error: slow down")


@pytest.mark.parametrize("name", ["request-id", "x-request-id", "x-amzn-RequestId", "apim-request-id"])
def test_request_id_is_in_the_error_and_its_message(name: str) -> None:
    found = fail(500, {"message": "oops"}, **{name: "req_1"})
    assert found.request_id == "req_1"
    assert str(found).endswith(": oops (request req_1)")


@pytest.mark.parametrize("wrap", [dict, lambda error: [error]])
def test_request_id_is_found_in_the_body(wrap: Callable[[Any], Any]) -> None:
    body = wrap({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": "req_2"})
    assert from_error_object(body, WHERE).request_id == "req_2"


@pytest.mark.parametrize("value", ["", "two words", "x" * 129, "a\nb", "<b>"])
def test_invalid_request_id_is_ignored(value: str) -> None:
    assert fail(500, {"message": "oops"}, **{"x-request-id": value.replace("\n", "\t")}).request_id is None
    assert from_error_object({"message": "oops", "request_id": value}, WHERE).request_id is None


def test_error_without_a_request_id_gets_that_of_the_response() -> None:
    error, other = errors.ServerError("cut short"), errors.ServerError("no", request_id="mine")
    for each in (error, error, other):
        name_request(each, httpx.Headers({"Request-Id": "req_3"}))
    assert (str(error), error.request_id) == ("cut short (request req_3)", "req_3")
    assert (str(other), other.request_id) == ("no", "mine")


def test_long_vendor_message_is_truncated() -> None:
    found = fail(500, {"message": "word " * 1_000_000, "details": [["x"] * 1000] * 100})
    assert len(str(found)) < 1200


NAMES = (
    "error errors message code type status details violations quotaId retryDelay reason request_id response metadata "
    "raw detail __type x"
)
names = st.sampled_from(NAMES.split())
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["9s", "429"])
anything: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("odd", [10**30, "\ud800", float("inf")])
@pytest.mark.parametrize("name", ["message", "x", "detail"])
def test_body_that_is_not_plain_json_is_shown(odd: object, name: str) -> None:
    for said in ({name: odd}, {name: {"a": odd}}):
        text = str(from_error_object(said, WHERE))
        assert text.encode().startswith(b"ollama:qwen3 at")


@given(anything, st.sampled_from([None, 400, 413, 429, 500, 599, 301]))
def test_any_vendor_message_becomes_a_provider_error(said: Any, status: int | None) -> None:
    body = json.dumps(said, allow_nan=False, default=str) if is_finite(said) else "{"
    found = (
        from_error_object(said, WHERE)
        if status is None
        else error_from_response(status, httpx.Headers(), body.encode(), WHERE)
    )
    assert isinstance(found, errors.ProviderError)
    assert found.retry_after is None or 0 <= found.retry_after < math.inf
    assert len(str(found)) < 1500


def is_finite(said: Any) -> bool:
    try:
        json.dumps(said, allow_nan=False)
    except ValueError:
        return False
    return True
