"""Contract and output of the example of an event log in Redis."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rxloop.errors import EventLogError
from rxloop.testing import event_log_contract
from rxloop.testing.event_log_contract.toolkit import note, start_events
from support.processes.services import REDIS

pytestmark = pytest.mark.service("redis")
PATH = Path(__file__).parents[2] / "examples/redis_event_log.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("redis_event_log", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prefix() -> Iterator[str]:
    """Prefix of the keys of a test, which are removed at its end."""
    import redis

    prefix = f"rxloop-test:{uuid4().hex}:"
    yield prefix
    with redis.Redis.from_url(REDIS) as client:
        for key in client.scan_iter(f"{prefix}*", count=1_000):
            client.delete(key)


@pytest.fixture
def make_log(example: Any, prefix: str) -> Callable[..., Any]:
    """Factory that returns a new, empty log at each call."""
    return lambda *, keep_deltas=False: example.RedisEventLog(REDIS, f"{prefix}{uuid4().hex}:")


@pytest.mark.parametrize("check", event_log_contract.CHECKS, ids=lambda check: check.__name__)
async def test_log_passes_the_contract(make_log: Callable[..., Any], check: event_log_contract.Check) -> None:
    await check(make_log)


async def test_second_writer_of_a_run_fails(example: Any, prefix: str) -> None:
    logs = [example.RedisEventLog(REDIS, prefix) for _ in range(5)]
    await logs[0].append("run", start_events(), expected_seq=0, writer="0")
    appends = [log.append("run", [note(3)], expected_seq=2, writer=str(number)) for number, log in enumerate(logs)]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["ConflictError"] * 4 + ["NoneType"]
    assert [event.seq for event in await logs[0].read("run")] == [1, 2, 3]
    for log in logs:
        await log.aclose()


async def test_two_log_objects_continue_a_conversation(example: Any, prefix: str, capsys: Any) -> None:
    await example.main(REDIS, prefix)
    assert capsys.readouterr().out == "2 Hello, Ann.\n4 You are Ann.\n"


async def test_missing_server_is_an_error_of_the_log(example: Any) -> None:
    log = example.RedisEventLog("redis://127.0.0.1:9/0")
    for call in (log.read("run"), log.list_runs(), log.append("run", [], expected_seq=0)):
        with pytest.raises(EventLogError):
            await call
    await log.aclose()
