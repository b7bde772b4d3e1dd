"""Fixtures of the tests in this folder."""

from __future__ import annotations

import pytest

from fork_shop import Shop
from machines import Machines, two_machines
from payments import Payments


@pytest.fixture
def machines() -> Machines:
    return two_machines()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def bank() -> Payments:
    return Payments()
