"""The A2A adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.types import a2a_pb2 as pb
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.server.a2a.calls import Contexts, guarded, on_error
from rxloop.server.a2a.card import RPC, Skills, card_of, card_route, completed
from rxloop.server.a2a.handler import ExtendedCard, Served, Tasks
from rxloop.server.a2a.push import Push, PushOptions
from rxloop.server.core.adapter import Adapter
from rxloop.server.core.gateway import Auth, Host, ServerLimits


class A2A(Adapter):
    """An agent for other agents; see `a2a`."""

    def __init__(self, host: Host, routes: Sequence[BaseRoute], card: pb.AgentCard, push: Push | None) -> None:
        """Serve a host; nothing is opened before the application is."""
        super().__init__(host, routes, on_error)
        self.card = card
        """The card, without addresses where those follow from each request."""
        self._push = push

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._push is not None:
            self._push.start(self.host)
        await super().__call__(scope, receive, send)


def a2a(
    runtime: Runtime,
    *,
    agent: str | None = None,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    heartbeat: float | None = 15.0,
    card: pb.AgentCard | None = None,
    description: str = "",
    version: str = "1.0.0",
    skills: Skills = "agent",
    extended_card: ExtendedCard | None = None,
    url: str | None = None,
    thoughts: bool = False,
    push: PushOptions | Literal[False] | None = None,
) -> A2A:
    """Serve an agent of a runtime to other agents, by A2A 1.0: JSON-RPC at `/rpc`, REST, and the agent card.

    One door serves one agent, since a card describes one: mount several under paths of their own. Served by itself it
    enters the runtime and leaves it; mounted in another application, that one does.

    Args:
        runtime: Has the agents, and the log.
        agent: The name of the agent; it may be left out where there is one.
        auth: Tells who asks; `bearer({...})` knows clients by tokens. Without it everybody sees all tasks.
        limits: How much clients may take.
        heartbeat: Seconds of silence after which a stream gives a sign of life, so that proxies keep it; None for none.
        card: A card of your own; what the door can do, and its addresses where there are none, is written into it.
        description: What the agent is for, for the card; needless with `card`, as are the next two.
        version: The version of the agent.
        skills: One skill for the agent, or one for each tool that clients may know of: `tools` shows their names and
            descriptions to everybody.
        extended_card: A card for those who are known, or a function of the `Principal` that gives it.
        url: Where clients reach the door, such as `https://example.com/a2a`; None takes it from each request.
        thoughts: Tell clients what the agent thinks aloud, as messages of the status.
        push: How webhooks are told; None is `PushOptions()` where the log keeps artifacts, False is no webhooks.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = a2a(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    name = _agent(runtime, agent)
    if heartbeat is not None and not heartbeat > 0:
        raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
    if skills not in ("agent", "tools"):
        raise ConfigurationError(f"skills must be 'agent' or 'tools', not {skills!r}")
    host = Host(runtime, auth, limits or ServerLimits())
    hooks = None if push is False else _push(runtime, push, thoughts)
    made = card or card_of(runtime.agents[name], skills, description=description, version=version, secured=host.secured)
    made = completed(made, push=hooks is not None, extended=extended_card is not None)
    tasks = Tasks(Served(host, name, made, extended_card, url, thoughts, hooks))
    routes: list[BaseRoute] = [card_route(made, url)]
    of_sdk = [
        *((route, True) for path in (RPC, f"{RPC}/") for route in create_jsonrpc_routes(tasks, path, Contexts())),
        # Without the same again for each tenant, of which there are none here.
        *((route, False) for route in create_rest_routes(tasks, Contexts()) if isinstance(route, Route)),
    ]
    for route, rpc in of_sdk:
        endpoint = guarded(host, route.endpoint, rpc=rpc, heartbeat=heartbeat)
        routes.append(Route(route.path, endpoint, methods=[*(route.methods or ())]))
    return A2A(host, routes, made, hooks)


def _agent(runtime: Runtime, name: str | None) -> str:
    known = ", ".join(runtime.agents)
    if name is None and len(runtime.agents) > 1:
        raise ConfigurationError(f"a card describes one agent, and the runtime has {known}: say agent=")
    if name is not None and name not in runtime.agents:
        raise ConfigurationError(f"there is no agent {name!r}: the runtime has {known}")
    return name or next(iter(runtime.agents))


def _push(runtime: Runtime, options: PushOptions | None, thoughts: bool) -> Push | None:
    try:
        return Push(runtime.log, options or PushOptions(), thoughts=thoughts)
    except ConfigurationError:
        if options is not None:
            raise
        return None
