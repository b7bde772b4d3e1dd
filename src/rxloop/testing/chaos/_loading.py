"""The agents that a worker is to have, by the name of where they are: they cannot be sent to another process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from rxloop.agent import Agent
from rxloop.errors import ConfigurationError


def load(reference: str) -> Any:
    """Load what `module:object` names.

    Raises:
        ConfigurationError: There is no such thing.
    """
    place, colon, name = reference.partition(":")
    if not (place and colon and name):
        raise ConfigurationError(f"{reference!r} names nothing: write module:object, such as shop:agent")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{reference!r} cannot be loaded: {error}") from error


def load_agents(reference: str) -> dict[str, Agent[Any, Any]]:
    """Load an agent, agents by their names, or a function that makes either.

    Raises:
        ConfigurationError: It is none of that.
    """
    found: Any = load(reference)
    if callable(found) and not isinstance(found, Agent):
        found = found()
    if isinstance(found, Agent):
        agent = cast("Agent[Any, Any]", found)
        return {agent.name: agent}
    if isinstance(found, Mapping):
        return dict(cast("Mapping[str, Agent[Any, Any]]", found))
    raise ConfigurationError(f"{reference!r} is {found!r}: it must be an Agent, a dict of agents, or make one")
