from __future__ import annotations

from collections.abc import AsyncIterator
from typing import get_args

import pytest
import pytest_asyncio

from rxloop.providers.transport import TRANSPORT_ENV, Transport
from support.http_server import Server, start_server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """Scripted model server."""
    async with start_server() as made:
        yield made


@pytest.fixture(params=get_args(Transport))
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """HTTP transport of the test, in turn for all tests that use HTTP.

    Other tests use the environment: `RXLOOP_TRANSPORT=aiohttp pytest tests` runs them over aiohttp.
    """
    monkeypatch.setenv(TRANSPORT_ENV, request.param)
    return request.param
