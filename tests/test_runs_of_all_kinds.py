"""Runs of all kinds, which are shared by tests of adapters and views."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings

from rxloop import Runtime
from rxloop.testing import virtual_time
from support.faulty_components import PLANTED
from support.nested_agents import check_attempts
from support.random_runs import NAME, RandomRun, random_run


async def run_case(kind: RandomRun) -> None:
    log = kind.log()
    async with Runtime({NAME: kind.agent()}, log=log) as runtime:
        task_id = await asyncio.wait_for(kind.execute(runtime), 60)
        assert (await runtime.get_record(task_id)).state in ("completed", "failed", "canceled")
    events = await log.read(task_id)
    check_attempts(events)
    shown = [event.to_json(public=True) for event in events if event.to_public() is not None]
    assert PLANTED.encode() not in b"".join(shown)


@settings(max_examples=60)
@given(kind=random_run())
def test_every_run_ends(kind: RandomRun) -> None:
    with virtual_time() as time:
        time.run(run_case(kind))
