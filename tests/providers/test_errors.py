from __future__ import annotations

import time
from email.utils import formatdate

import httpx
import pytest

from rxloop import errors
from rxloop.providers._errors import Endpoint, from_httpx, retry_after

WHERE = Endpoint("ollama:qwen3", "http://localhost:11434/v1/chat/completions", "THE_KEY", "Start it.")


def test_the_wait_that_the_vendor_asks_for_is_a_number_or_a_date() -> None:
    assert retry_after({"retry-after-ms": "1500"}) == 1.5
    assert retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=3)
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (httpx.ConnectError("refused"), errors.ProviderConnectionError, "Start it."),
        (httpx.ConnectTimeout(""), errors.ProviderTimeout, "connect timeout"),
        (httpx.ReadTimeout(""), errors.ProviderTimeout, "idle timeout"),
        (httpx.RemoteProtocolError("peer closed"), errors.ProviderConnectionError, "peer closed"),
        (httpx.DecodingError("gzip"), errors.ProviderProtocolError, "gzip"),
        (httpx.LocalProtocolError("Illegal header value"), errors.ConfigurationError, "Illegal header value"),
    ],
)
def test_a_failure_of_the_connection_says_what_to_do(error: Exception, kind: type[Exception], words: str) -> None:
    found = from_httpx(error, WHERE)
    assert type(found) is kind
    assert words in str(found)
