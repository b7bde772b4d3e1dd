"""What the tests of workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres import database


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """A database of one test, as an address."""
    with database(postgres) as own:
        yield own
