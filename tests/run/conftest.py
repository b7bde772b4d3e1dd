"""Fixtures for run tests."""

from __future__ import annotations

import pytest

from support.fork_shop import Shop
from support.payments import Payments
from support.processes.machines import Machines, two_machines


@pytest.fixture
def machines() -> Machines:
    return two_machines()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def bank() -> Payments:
    return Payments()
