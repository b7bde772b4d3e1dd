"""What `rxloop serve` serves: the agents that a module has, on a log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rxloop.cli.agent_options import agents_of, load, made_of
from rxloop.cli.store import opened
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime


@asynccontextmanager
async def runtime_of(reference: str, db: str | None, *, named: bool = False) -> AsyncGenerator[Runtime]:
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
    agents = agents_of(found, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop serve {reference!r} is {found!r}: it must be an Agent, a dict of agents, a Runtime, or a function "
            "that gives one"
        )
    async with opened(db, write=True) as log:
        yield Runtime(agents, log=log)
