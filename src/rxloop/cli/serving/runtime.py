"""What `rxloop serve` serves: the agents that a module has, on a log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from rxloop.agent import Agent
from rxloop.cli.agent_options import load, made_of, name_of
from rxloop.cli.store import opened
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime


@asynccontextmanager
async def runtime_of(reference: str, db: Path | None, *, named: bool = False) -> AsyncGenerator[Runtime]:
    """Make the runtime of what `module:object` names; a log that is opened for it is closed.

    Args:
        reference: Names agents, or a runtime.
        db: Where the runs of agents are kept.
        named: Whether somebody has asked for that place, and a runtime, which has one, is a mistake.

    Raises:
        ConfigurationError: It is none of what can be served.
    """
    found = made_of(load(reference, "rxloop serve"), reference, "rxloop serve")
    if isinstance(found, Runtime):
        if named:
            raise ConfigurationError(f"--db does not go with {reference!r}: that runtime has a log of its own")
        yield found
        return
    agents = _agents(found, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop serve {reference!r} is {found!r}: it must be an Agent, a dict of agents, a Runtime, or a function "
            "that gives one"
        )
    async with opened(db, write=True) as log:
        yield Runtime(agents, log=log)


def _agents(found: Any, reference: str) -> Mapping[str, Agent[Any, Any]] | None:
    if isinstance(found, Agent):
        agent = cast("Agent[Any, Any]", found)
        return {name_of(agent, reference): agent}
    if isinstance(found, Mapping) and found:
        agents = cast("Mapping[str, Any]", found)
        return agents if all(isinstance(each, Agent) for each in agents.values()) else None
    return None
