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
    """Parametrised HTTP transport.

    Tests without this fixture use the transport in the environment, for example with `RXLOOP_TRANSPORT=aiohttp pytest
    tests`.
    """
    monkeypatch.setenv(TRANSPORT_ENV, request.param)
    return request.param
