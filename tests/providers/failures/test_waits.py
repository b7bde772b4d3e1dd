from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from rxloop.providers.failures._waits import asked_wait


def waited(error: dict[str, Any] | None = None, message: str = "", **headers: str) -> float | None:
    return asked_wait(named(headers), error or {}, message, limited=True)


def named(headers: dict[str, str]) -> httpx.Headers:
    return httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})


def ahead(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def retry_info(delay: object) -> dict[str, Any]:
    return {"details": ["odd", {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}


def test_the_wait_that_the_vendor_asks_for_is_a_number_or_a_date() -> None:
    assert waited(retry_after_ms="1500", retry_after="7") == 1.5
    assert waited(retry_after="7") == 7
    assert waited(retry_after=formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=3)
    assert waited(retry_after="soon") is None
    assert waited() is None


@pytest.mark.parametrize(("delay", "seconds"), [("13s", 13), ("0.847655s", 0.847655), ("soon", None), (7, None)])
def test_google_s_delay_is_read_from_the_details(delay: object, seconds: float | None) -> None:
    assert waited(retry_info(delay)) == seconds


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
        ("Please try again in a moment.", None),
        ("Please try again in 5 parsecs.", None),
        ("try again in " + "9" * 1_000_000, None),
    ],
)
def test_the_words_of_the_vendor_are_the_last_resort(words: str, seconds: float | None) -> None:
    found = waited(message=words)
    assert found == (None if seconds is None else pytest.approx(seconds))
    assert waited(message=words, retry_after="3") == 3
    assert waited(retry_info("4s"), words) == 4


def test_the_moment_at_which_a_limit_is_full_again_counts_where_nothing_else_is_said() -> None:
    limits = {
        "anthropic_ratelimit_requests_remaining": "12",
        "anthropic_ratelimit_requests_reset": ahead(900),
        "anthropic_ratelimit_input_tokens_remaining": "0",
        "anthropic_ratelimit_input_tokens_reset": ahead(30),
        "anthropic_ratelimit_output_tokens_remaining": "0",
        "anthropic_ratelimit_output_tokens_reset": ahead(40),
    }
    assert asked_wait(named(limits), {}, "", limited=True) == pytest.approx(40, abs=3)
    assert asked_wait(named({**limits, "retry_after": "5"}), {}, "", limited=True) == 5
    assert waited(anthropic_ratelimit_tokens_reset=ahead(8)) == pytest.approx(8, abs=3)
    assert waited(anthropic_ratelimit_tokens_reset="soon") is None
    assert asked_wait(named(limits), {}, "", limited=False) is None
