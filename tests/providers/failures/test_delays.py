from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any

import httpx
import orjson
import pytest

from rxloop.providers.error_responses import error_from_response, from_error_object
from rxloop.providers.failures import Endpoint, find_retry_delay


def read_delay(error: dict[str, Any] | None = None, message: str = "", **headers: str) -> float | None:
    return find_retry_delay(make_reset_headers(headers), error or {}, message, limited=True)


def make_reset_headers(headers: dict[str, str]) -> httpx.Headers:
    return httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})


def format_future(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def retry_info(delay: object) -> dict[str, Any]:
    return {"details": ["odd", {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}


def test_retry_after_may_be_a_number_or_a_date() -> None:
    assert read_delay(retry_after_ms="1500", retry_after="7") == 1.5
    assert read_delay(retry_after="7") == 7
    assert read_delay(retry_after=formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=3)
    assert read_delay(retry_after="soon") is None
    assert read_delay() is None


@pytest.mark.parametrize(("delay", "seconds"), [("13s", 13), ("0.847655s", 0.847655), ("soon", None), (7, None)])
def test_google_delay_is_read_from_the_details(delay: object, seconds: float | None) -> None:
    assert read_delay(retry_info(delay)) == seconds


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Rate limit reached. Please try again in 1.2s. Visit the page.", 1.2),
        ("Please try again in 20ms.", 0.02),
        ("Please try again in 1m2.5s.", 62.5),
        ("Please try again in 1h2m3s", 3723),
        ("Please retry after 22 seconds.", 22),
        ("Please retry in 47.434392449s.", 47.434392449),
        ("try again in 250 milliseconds", 0.25),
        ("Please wait 3 minutes and 2 seconds before the next request.", 182),
        ("Please try again in 1 hour, 2 minutes and 3 seconds", 3723),
        ("Please try again in a moment.", None),
        ("Please try again in 5 parsecs.", None),
        ("try again in " + "9" * 1_000_000, None),
    ],
)
def test_delay_in_the_message_is_the_last_resort(words: str, seconds: float | None) -> None:
    find = read_delay(message=words)
    assert find == (None if seconds is None else pytest.approx(seconds))
    assert read_delay(message=words, retry_after="3") == 3
    assert read_delay(retry_info("4s"), words) == 4


def test_reset_time_of_a_limit_counts_without_another_delay() -> None:
    limits = {
        "anthropic_ratelimit_requests_remaining": "12",
        "anthropic_ratelimit_requests_reset": format_future(900),
        "anthropic_ratelimit_input_tokens_remaining": "0",
        "anthropic_ratelimit_input_tokens_reset": format_future(30),
        "anthropic_ratelimit_output_tokens_remaining": "0",
        "anthropic_ratelimit_output_tokens_reset": format_future(40),
    }
    assert find_retry_delay(make_reset_headers(limits), {}, "", limited=True) == pytest.approx(40, abs=3)
    assert find_retry_delay(make_reset_headers({**limits, "retry_after": "5"}), {}, "", limited=True) == 5
    assert read_delay(anthropic_ratelimit_tokens_reset=format_future(8)) == pytest.approx(8, abs=3)
    assert read_delay(anthropic_ratelimit_tokens_reset="soon") is None
    assert find_retry_delay(make_reset_headers(limits), {}, "", limited=False) is None


def epoch(seconds: float, unit: float = 1) -> str:
    return str(int((time.time() + seconds) * unit))


# P30
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("1.5", 1.5),
        (" 7 ", 7),
        ("7s", 7),
        ("6m0s", 360),
        ("1h2m3.5s", 3723.5),
        ("88ms", 0.088),
        ("1d", 86_400),
        ("0", 0),
        ("-1", None),
        ("-5s", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("soon", None),
        ("", None),
        ("5 parsecs", None),
        (str(31 * 86_400), None),
        ("1000d", None),
        ("9" * 400, None),
        ("946684800", None),
        ("1000000000", None),
        ("9999-12-31T23:59:59Z", None),
        ("2001-01-01T00:00:00Z", 0),
        ("Sat, 01 Jan 2000 00:00:00 GMT", 0),
        ("Sat, 99 Foo 2000", None),
    ],
)
@pytest.mark.parametrize(
    "header", ["retry-after", "x-ratelimit-reset-requests", "x-ratelimit-reset", "ratelimit-reset"]
)
def test_delay_is_read_in_every_format_and_bounded(header: str, value: str, seconds: float | None) -> None:
    find = find_retry_delay({header: value}, {}, "", limited=True)
    assert find == (None if seconds is None else pytest.approx(seconds))


# P30
@pytest.mark.parametrize("header", ["Retry-After", "retry-after-ms", "X-RateLimit-Reset", "x-ratelimit-reset-tokens"])
@pytest.mark.parametrize(
    "moment",
    [
        lambda: epoch(30),
        lambda: epoch(30, 1e3),
        lambda: epoch(30, 1e6),
        lambda: epoch(30, 1e9),
        lambda: format_future(30),
        lambda: format_future(30).replace("Z", "+00:00"),
        lambda: format_future(30).replace("Z", ""),
        lambda: formatdate(time.time() + 30, usegmt=True),
    ],
)
def test_timestamp_is_converted_to_remaining_seconds(header: str, moment: Callable[[], str]) -> None:
    assert find_retry_delay({header: moment()}, {}, "", limited=True) == pytest.approx(30, abs=3)


# P30
@pytest.mark.parametrize("style", ["x-ratelimit-{part}-{limit}", "anthropic-ratelimit-{limit}-{part}"])
def test_only_an_exhausted_limit_causes_a_delay(style: str) -> None:
    def limit(name: str, remaining: str | None, reset: str) -> dict[str, str]:
        left = {} if remaining is None else {style.format(part="remaining", limit=name): remaining}
        return {**left, style.format(part="reset", limit=name): reset}

    def find(*limits: dict[str, str]) -> float | None:
        return find_retry_delay({name: value for each in limits for name, value in each.items()}, {}, "", limited=True)

    assert find(limit("requests", "12", "6m0s"), limit("tokens", "0", "1.5s")) == 1.5
    assert find(limit("requests", "0", "6m0s"), limit("tokens", "100", "1.5s")) == 360
    assert find(limit("requests", "0", "6m0s"), limit("tokens", "0", "1.5s")) == 360
    assert find(limit("requests", "12", "6m0s"), limit("tokens", "100", "1.5s")) is None
    assert find(limit("requests", "12", "6m0s"), limit("tokens", None, "1.5s")) == 1.5
    assert find(limit("requests", None, "6m0s"), limit("tokens", None, "1.5s")) == 1.5
    assert find(limit("requests", "0.0", "88ms")) == pytest.approx(0.088)
    assert find(limit("requests", "many", "88ms")) is None
    assert find_retry_delay(limit("requests", "0", "6m0s"), {}, "", limited=False) is None


# P30
@pytest.mark.parametrize("name", ["ratelimitbysize-{}", "x-tokenlimit-{}", "x-rate-limit-{}", "ratelimit-{}"])
def test_reset_of_a_limit_is_read_under_each_name(name: str) -> None:
    reset, remaining = name.format("reset"), name.format("remaining")
    assert find_retry_delay({reset: "35", remaining: "0"}, {}, "", limited=True) == 35
    assert find_retry_delay({reset: "35", remaining: "1"}, {}, "", limited=True) is None


# P30
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "x-ms-retry-after-ms"])
def test_requested_delay_takes_precedence_over_resets(name: str) -> None:
    value = "3000" if name.endswith("ms") else "3"
    headers = {name: value, "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}
    assert find_retry_delay(headers, {}, "Please try again in 9s.", limited=True) == 3


# P30
def test_daily_and_per_minute_limits_are_separate() -> None:
    headers = {
        "x-ratelimit-remaining-requests-day": "100",
        "x-ratelimit-reset-requests-day": "33011.4",
        "x-ratelimit-remaining-tokens-minute": "0",
        "x-ratelimit-reset-tokens-minute": "11.38",
    }
    assert find_retry_delay(headers, {}, "", limited=True) == pytest.approx(11.38)
    assert find_retry_delay({"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "60"}, {}, "", limited=True) is None


# P30
def test_headers_embedded_by_openrouter_are_read() -> None:
    upstream: dict[str, Any] = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0"}
    error = {"code": 429, "message": "Rate limit exceeded", "metadata": {"headers": upstream}}
    upstream["X-RateLimit-Reset"] = epoch(30, 1e3)
    assert read_delay(error) == pytest.approx(30, abs=3)
    upstream["X-RateLimit-Reset"] = int(epoch(30, 1e3))
    assert read_delay(error) == pytest.approx(30, abs=3)
    upstream["Retry-After"] = 4
    assert read_delay(error) == 4
    assert read_delay(error, retry_after="3") == 3
    assert read_delay({"metadata": {"headers": ["odd"]}}) is None
    assert read_delay({"metadata": {"headers": {"Retry-After": None, 3: 4}}}) is None
    assert read_delay({"metadata": "odd"}) is None


# P30
@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (retry_info("37s"), 37),
        (retry_info("0.5s"), 0.5),
        (retry_info({"seconds": "37", "nanos": 500_000_000}), 37.5),
        (retry_info("-5s"), None),
        (retry_info({"seconds": []}), None),
        ({"retry_after": 9}, 9),
        ({"retry_after_ms": 900}, 0.9),
        ({"metadata": {"retry_after_seconds": 9}}, 9),
        ({"retry_after": True}, None),
        ({"retry_after": -1}, None),
        ({"retry_after": math.nan}, None),
    ],
)
def test_delay_in_the_body_is_read(error: dict[str, Any], seconds: float | None) -> None:
    assert find_retry_delay({}, error, "", limited=False) == (None if seconds is None else pytest.approx(seconds))


# P30
@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Requests have exceeded the call rate limit. Please retry after 26 seconds.", 26),
        ("Please wait 37 seconds before trying again.", 37),
        ("Please wait for 2 minutes.", 120),
        ("Try again in about 5 min.", 300),
        ("Please try again in 7m12s", 432),
        ("Please try again in 1000 days.", None),
    ],
)
def test_delay_in_a_sentence_takes_precedence_over_resets(words: str, seconds: float | None) -> None:
    find = find_retry_delay(
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "500s"}, {}, words, limited=True
    )
    assert find == (500 if seconds is None else pytest.approx(seconds))


# P30
def test_delay_of_a_refusal_reaches_the_caller() -> None:
    endpoint = Endpoint("mine:model", "http://vendor/v1/chat/completions", None)
    upstream = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": epoch(30, 1e3)}
    body = {"error": {"code": 429, "message": "Rate limit exceeded", "metadata": {"headers": upstream}}}
    find = error_from_response(429, {}, orjson.dumps(body), endpoint)
    assert find.retry_after == pytest.approx(30, abs=3)
    assert from_error_object(body, endpoint).retry_after == pytest.approx(30, abs=3)
    assert error_from_response(429, {"retry-after": epoch(30)}, b"", endpoint).retry_after == pytest.approx(30, abs=3)


@pytest.mark.parametrize(("delay", "text"), [("0.01", "0.01 s"), ("2.34", "2.3 s"), ("60", "60 s")])
def test_delay_in_the_message_is_not_rounded_to_zero(delay: str, text: str) -> None:
    endpoint = Endpoint("mine:model", "http://vendor/v1/chat/completions", None)
    assert f"(retry after {text})" in str(error_from_response(429, {"retry-after": delay}, b"", endpoint))
