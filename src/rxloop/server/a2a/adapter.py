"""A2A adapter and agent card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types import a2a_pb2 as pb
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from typing_extensions import Unpack, override

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.server.a2a.calls import ContextBuilder, filter_sdk_logs, reject_json, respond_refused, serve_sdk
from rxloop.server.a2a.handler import ExtendedCard, ServedAgent, TaskHandler
from rxloop.server.a2a.push import Push, PushOptions
from rxloop.server.core.adapter import Adapter, AdapterOptions, Endpoint, find_only_agent
from rxloop.server.core.bodies import NestedTooDeeply
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway

RPC = "/rpc"
"""JSON-RPC path relative to the adapter. The REST endpoints are at the root."""
_MEDIA_TYPES = ("text/plain", "text/markdown", "application/json", "application/pdf")
_IMAGE_TYPES = ("image/gif", "image/jpeg", "image/png", "image/webp")

Skills = Literal["agent", "tools"]


def make_card(agent: Agent[Any, Any], skills: Skills, *, description: str, version: str, secured: bool) -> pb.AgentCard:
    """Create an agent card without URLs.

    Args:
        agent: Agent to describe.
        skills: `agent` for a single skill, or `tools` for one skill per public tool.
        description: Purpose of the agent.
        version: Agent version.
        secured: True if clients need a token.
    """
    about = description or f"The agent {agent.name}."
    entries = [pb.AgentSkill(id=agent.name, name=agent.name, description=about, tags=["agent"])]
    if skills == "tools":
        entries = [
            pb.AgentSkill(id=name, name=name, description=text or name, tags=["tool"])
            for name, text in agent.definition.tool_descriptions.items()
        ] or entries
    card = pb.AgentCard(
        name=agent.name,
        description=about,
        version=version,
        default_input_modes=[*_MEDIA_TYPES, *_IMAGE_TYPES],
        default_output_modes=["text/plain", "application/json"],
        skills=entries,
    )
    if secured:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_requirements.add().schemes["bearer"].SetInParent()
    return card


def add_capabilities(card: pb.AgentCard, *, push: bool, extended: bool) -> pb.AgentCard:
    """Add the adapter's capabilities to a card."""
    copy = pb.AgentCard()
    copy.CopyFrom(card)
    copy.capabilities.streaming = True
    copy.capabilities.push_notifications = push
    copy.capabilities.extended_agent_card = extended
    return copy


def add_urls(card: pb.AgentCard, request: Request, url: str | None) -> pb.AgentCard:
    """Add interface URLs to a card without URLs."""
    if card.supported_interfaces:
        return card
    base_url = request.base_url.replace(path=request.scope.get("root_path", ""))
    url = (url or str(base_url)).rstrip("/")
    copy = pb.AgentCard()
    copy.CopyFrom(card)
    for binding, path in (("JSONRPC", f"{RPC}/"), ("HTTP+JSON", "")):
        copy.supported_interfaces.add(url=url + path, protocol_binding=binding, protocol_version="1.0")
    return copy


def make_card_route(served: ServedAgent) -> Route:
    """Create the public route of the agent card, at the path defined by A2A."""

    async def serve(request: Request) -> Response:
        [route] = create_agent_card_routes(served.address(served.card, request), cache_control="public, max-age=60")
        return await route.endpoint(request)

    return Route("/.well-known/agent-card.json", serve, methods=["GET"])


_BODYLESS = ("GET", "HEAD", "DELETE")


class A2A(Adapter):
    """Adapter for the A2A protocol; see `a2a`."""

    def __init__(self, runtime: Runtime, make: Callable[[Gateway], ServedAgent], options: AdapterOptions) -> None:
        """Initialize the adapter; see `a2a`."""
        super().__init__(runtime, **options)
        filter_sdk_logs()
        self._served = make(self.gateway)
        self._push = self._served.push

    @property
    def card(self) -> pb.AgentCard:
        """Agent card without request-specific URLs."""
        return self._served.card

    @override
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        tasks, contexts = TaskHandler(self._served), ContextBuilder()
        rpc = [route for path in (RPC, f"{RPC}/") for route in create_jsonrpc_routes(tasks, path, contexts)]
        # Skip the SDK's tenant routes, because tenants are not supported.
        rest = [route for route in create_rest_routes(tasks, contexts) if isinstance(route, Route)]
        endpoints = [
            Endpoint(
                method,
                route.path,
                partial(serve_sdk, route.endpoint, route in rpc),
                None if method in _BODYLESS else bytes,
            )
            for route in (*rpc, *rest)
            for method in route.methods or ()
            if method != "HEAD"
        ]
        return [make_card_route(self._served), *endpoints]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        if isinstance(refused, NestedTooDeeply):
            return reject_json(request.scope["path"].rstrip("/").endswith(RPC), str(refused))
        return respond_refused(refused)

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._push is not None:
            await self._push.start(self.gateway)
        await super().__call__(scope, receive, send)


def a2a(
    runtime: Runtime,
    *,
    agent: str | None = None,
    card: pb.AgentCard | None = None,
    description: str = "",
    version: str = "1.0.0",
    skills: Skills = "agent",
    extended_card: ExtendedCard | None = None,
    url: str | None = None,
    thoughts: bool = False,
    push: PushOptions | Literal[False] | None = None,
    **options: Unpack[AdapterOptions],
) -> A2A:
    """Serve an agent to other agents over A2A 1.0, with JSON-RPC at `/rpc`, REST, and an agent card.

    An agent card describes a single agent, so mount a separate adapter for each agent. Standalone, the adapter opens
    and closes the runtime. When mounted, the parent application is responsible for the runtime.

    Args:
        runtime: Runtime with the agents and the event log.
        agent: Name of the agent. Optional if the runtime has only one agent.
        card: Custom agent card. Capabilities are added, and also URLs if it has none.
        description: Purpose of the agent, for the card. Like `version` and `skills`, it is ignored if `card` is passed.
        version: Agent version.
        skills: `agent` for a single skill, or `tools` for one skill per public tool, which publishes tool names and
            descriptions.
        extended_card: Card for authenticated clients, or a function that creates it for a `Principal`.
        url: Public URL of the adapter, such as `https://example.com/a2a`. By default, it is derived from each request.
        thoughts: Whether clients receive the agent's thoughts as status messages.
        push: Webhook options. None enables webhooks with default options if the log supports artifacts; False disables
            webhooks.
        options: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = a2a(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    name = find_only_agent(runtime, agent)
    if skills not in ("agent", "tools"):
        raise ConfigurationError(f"skills must be 'agent' or 'tools', got {skills!r}")

    def make(gateway: Gateway) -> ServedAgent:
        webhooks = None if push is False else _push(runtime, push, thoughts)
        served, secured = runtime.agents[name], gateway.requires_auth
        agent_card = card or make_card(served, skills, description=description, version=version, secured=secured)
        agent_card = add_capabilities(agent_card, push=webhooks is not None, extended=extended_card is not None)
        return ServedAgent(gateway, name, agent_card, extended_card, partial(add_urls, url=url), thoughts, webhooks)

    return A2A(runtime, make, options)


def _push(runtime: Runtime, options: PushOptions | None, thoughts: bool) -> Push | None:
    try:
        return Push(runtime.log, options or PushOptions(), thoughts=thoughts)
    except ConfigurationError:
        if options is not None:
            raise
        return None
