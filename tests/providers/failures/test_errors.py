from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from rxloop import errors
from rxloop.providers.failures import Endpoint, error_from_httpx

WHERE = Endpoint("ollama:qwen3", "http://localhost:11434/v1/chat/completions", "THE_KEY", "Start it.")


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
def test_connection_error_suggests_a_remedy(error: Exception, kind: type[Exception], words: str) -> None:
    found = error_from_httpx(error, WHERE)
    assert type(found) is kind
    assert words in str(found)


@pytest.mark.parametrize(("hint", "end"), [("Start it.", "attempts failed. Start it."), ("", "attempts failed")])
def test_connection_error_ends_with_the_hint_or_without_a_full_stop(hint: str, end: str) -> None:
    found = error_from_httpx(httpx.ConnectError("All attempts failed."), replace(WHERE, hint=hint))
    assert str(found).endswith(end)
