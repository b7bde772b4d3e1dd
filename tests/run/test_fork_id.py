"""Forks whose id is chosen by whoever makes them."""

from __future__ import annotations

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog
from rxloop.agents import derive_id
from rxloop.errors import RunExists
from rxloop.testing import ScriptedModel


async def test_a_fork_has_the_id_that_it_was_given_and_there_is_one_of_it() -> None:
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


async def test_an_id_that_is_no_uuid_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="UUID"):
        Agent(ScriptedModel(), log=MemoryEventLog()).fork("x", at=1, fork_id="mine")
