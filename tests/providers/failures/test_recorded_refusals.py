"""Recorded vendor errors on all protocols, compared with the SDKs of the vendors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop import errors
from rxloop.providers.error_responses import error_from_response
from rxloop.providers.failures import Endpoint
from support.vendors.recordings import CORPUS, body, needs_recordings, oracle, recording

WHERE = Endpoint("vendor:model", "http://localhost:1/v1")
KINDS: dict[str, type[errors.ProviderError]] = {
    "400": errors.BadRequest,
    "401": errors.AuthenticationError,
    "404": errors.UnknownModel,
    "429": errors.RateLimited,
    # Exceptions, because the status is ambiguous.
    "model_not_found": errors.UnknownModel,
    "API key not valid": errors.AuthenticationError,
}
pytestmark = needs_recordings


def list_refused() -> list[str]:
    """List conversations with an HTTP error."""
    found = (path for path in (CORPUS / "exchanges").glob("*.json") if _statuses(path))
    return sorted(path.stem for path in found) or ["nothing"]


def _statuses(path: Path) -> list[int]:
    statuses = [exchange["response"]["status"] for exchange in recording(path.stem)["exchanges"]]
    return [status for status in statuses if status >= 400]


@pytest.mark.parametrize("name", list_refused())
def test_error_from_a_recorded_response_matches_the_error_of_the_vendor_sdk(name: str) -> None:
    pairs = zip(recording(name)["exchanges"], oracle(name), strict=True)
    seen = [pair for pair in pairs if pair[0]["response"]["status"] >= 400]
    assert seen
    for exchange, expected in seen:
        _compare(exchange, expected)


def _compare(exchange: Any, expected: Any) -> None:
    response = exchange["response"]
    told = body(exchange)
    error = error_from_response(response["status"], response["headers"], told, WHERE)
    said = f"{response['status']} {expected.get('code')} {told.decode()}"
    assert type(error) is next(kind for key, kind in reversed(KINDS.items()) if key in said), said
    assert error.status == expected["status"]
    request_id = orjson.loads(told).get("request_id")
    assert error.request_id == request_id
    assert str(request_id or "") in str(error)
