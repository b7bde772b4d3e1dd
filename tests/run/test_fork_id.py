"""Forks with custom ids."""

from __future__ import annotations

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog
from rxloop.agents import derive_id
from rxloop.errors import RunExists
from rxloop.testing import ScriptedModel


async def test_fork_has_the_requested_id_and_cannot_be_created_twice() -> None:
    log, model = MemoryEventLog(), ScriptedModel("One.", "Two.", "Three.")
    agent = Agent(model, log=log)
    first = await agent.run("Count.")
    fork_id = derive_id("fork", "1")
    fork = await agent.fork(first.task_id, at=1, fork_id=fork_id)
    assert (fork.task_id, fork.content) == (fork_id, "Two.")
    with pytest.raises(RunExists, match=fork_id):
        await agent.fork(first.task_id, at=1, fork_id=fork_id)
    assert len(model.requests) == 2
    assert (await agent.resume(fork_id)).content == "Two."


async def test_fork_rejects_id_that_is_not_a_uuid() -> None:
    with pytest.raises(ConfigurationError, match="UUID"):
        Agent(ScriptedModel(), log=MemoryEventLog()).fork("x", at=1, fork_id="mine")
