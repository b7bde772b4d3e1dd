"""The agent card."""

from __future__ import annotations

from typing import Any, Literal

from a2a.server.routes import create_agent_card_routes
from a2a.types import a2a_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rxloop.agents.agent import Agent

RPC = "/rpc"
"""Where JSON-RPC is served, below the door; REST is at its top."""
_MEDIA = ("text/plain", "text/markdown", "application/json", "application/pdf")
_IMAGES = ("image/gif", "image/jpeg", "image/png", "image/webp")

Skills = Literal["agent", "tools"]


def card_of(agent: Agent[Any, Any], skills: Skills, *, description: str, version: str, secured: bool) -> pb.AgentCard:
    """Make the card of an agent, without the addresses.

    Args:
        agent: The agent.
        skills: One skill for the agent, or one for each tool that clients may know of.
        description: What the agent is for.
        version: Its version.
        secured: Clients have to show a token.
    """
    about = description or f"The agent {agent.name}."
    shown = [pb.AgentSkill(id=agent.name, name=agent.name, description=about, tags=["agent"])]
    if skills == "tools":
        shown = [
            pb.AgentSkill(id=name, name=name, description=text or name, tags=["tool"])
            for name, text in agent.definition.tool_descriptions.items()
        ] or shown
    card = pb.AgentCard(
        name=agent.name,
        description=about,
        version=version,
        default_input_modes=[*_MEDIA, *_IMAGES],
        default_output_modes=["text/plain", "application/json"],
        skills=shown,
    )
    if secured:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_requirements.add().schemes["bearer"].SetInParent()
    return card


def completed(card: pb.AgentCard, *, push: bool, extended: bool) -> pb.AgentCard:
    """Say in a card what the door can do."""
    made = pb.AgentCard()
    made.CopyFrom(card)
    made.capabilities.streaming = True
    made.capabilities.push_notifications = push
    made.capabilities.extended_agent_card = extended
    return made


def addressed(card: pb.AgentCard, url: str) -> pb.AgentCard:
    """Write into a card where the door is reached, unless it says so already."""
    if card.supported_interfaces:
        return card
    made = pb.AgentCard()
    made.CopyFrom(card)
    for binding, path in (("JSONRPC", f"{RPC}/"), ("HTTP+JSON", "")):
        made.supported_interfaces.add(url=url + path, protocol_binding=binding, protocol_version="1.0")
    return made


def card_route(card: pb.AgentCard, url: str | None) -> Route:
    """Serve a card where A2A wants it, to everybody.

    Args:
        card: The card.
        url: Where clients reach the door; None takes it from each request.
    """

    async def serve(request: Request) -> Response:
        [route] = create_agent_card_routes(addressed(card, url_of(request, url)), cache_control="public, max-age=60")
        return await route.endpoint(request)

    return Route("/.well-known/agent-card.json", serve, methods=["GET"])


def url_of(request: Request, url: str | None) -> str:
    """Where clients reach the door."""
    here = request.base_url.replace(path=request.scope.get("root_path", ""))
    return (url or str(here)).rstrip("/")
