from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from servers import Server, serving


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """A model server that sends what the test tells it to."""
    async with serving() as made:
        yield made
