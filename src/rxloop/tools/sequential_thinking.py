"""Sequential thinking tool and base class for session tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from rxloop.errors import (
    ConfigurationError,
    InvalidThought,
    SessionError,
    StageChoiceRequired,
    StageRefused,
    StrategyError,
    ToolError,
)
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import CustomEvent, SessionLink, StageEvent, ThoughtStreamEvent
from rxloop.storage import MemoryArtifacts
from rxloop.support.misuse import check_minimum, check_type
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.session_artifacts import is_generated
from rxloop.thinking.sessions.thought import DESCRIPTION, ThoughtInput, find_name_problem, make_parameters
from rxloop.tools.result import ToolResult

Owner = str | Callable[[RunContext[Any]], str]


class SessionTool(ABC):
    """A tool whose calls add thoughts to a session. Thoughts are published and stored in an artifact store."""

    timeout: float | None = None
    idempotent = True  # A repeated call adds no second thought.
    approve = False

    def __init__(
        self,
        definition: ToolDefinition,
        session_id: str | None,
        sessions: ThinkingSessions | None,
        owner: Owner | None,
        text_tokens: int,
    ) -> None:
        if session_id is not None and not session_id.strip():
            raise ConfigurationError("session_id must not be blank; pass a name or omit it")
        if session_id is not None and (problem := find_name_problem(session_id)) is not None:
            raise ConfigurationError(f"session_id={session_id[:60]!r} {problem}")
        check_minimum(1, text_tokens=text_tokens)
        check_type("sessions", sessions, ThinkingSessions | None, "ThinkingSessions(MemoryArtifacts())")
        check_type("owner", owner, str | Callable | None, "a string or a function of the RunContext")
        self.sessions = sessions if sessions is not None else _choose_sessions(session_id)
        self.definition = definition
        self._bound = session_id
        self._owner = owner
        self._text_tokens = text_tokens

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}{'' if self._bound is None else f' {self._bound}'}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True."""
        return True

    async def session(self, *, owner: str | None = None) -> Session:
        """Return the bound session.

        Args:
            owner: Session owner, required if ownership depends on the run.

        Raises:
            ConfigurationError: Tool without a bound session.
            UnknownSession: Empty or expired session.
        """
        if self._bound is None:
            raise ConfigurationError(f"{self.definition.name} is not bound to a session; create it with a session_id")
        return await self.sessions.get_session(
            self._bound, owner=self._owner if isinstance(self._owner, str) else owner
        )

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        """Add a thought to the session.

        Raises:
            ToolError: Rejected thought or unknown session. No data is stored.
        """
        slot = f"{ctx.task_id}:{ctx.step}:{ctx.index}" if ctx.run is not None and ctx.call is not None else None
        try:
            result = await self._think(arguments, self._get_owner(ctx), slot)
        except (SessionError, StrategyError) as error:
            if ctx.run is not None and isinstance(error, StageRefused) and error.target is not None:
                ctx.emit(_make_refusal_event(error))
            raise ToolError(_describe_refusal(error)) from error
        if ctx.run is not None and result.thought_id not in ctx.state.thoughts:
            _publish_thought(result, ctx)
        return ToolResult(result.to_published(self._text_tokens), self.to_text(result))

    @abstractmethod
    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        """Add the call's thought to its session."""

    def to_text(self, result: ThoughtResult) -> str:
        """Return the JSON that a model reads as the result of its call."""
        return result.to_text(self._text_tokens)

    def _get_owner(self, ctx: RunContext[Any]) -> str | None:
        if self._owner is not None:
            return self._owner if isinstance(self._owner, str) else self._owner(ctx)
        # Bound sessions belong to the application or their original owner. Other sessions are scoped to the
        # conversation.
        if self._bound is not None:
            return None
        return "" if ctx.run is None else ctx.info.conversation


def _choose_sessions(session_id: str | None) -> ThinkingSessions:
    """Return default session storage for a tool.

    Tools share sessions with generated ids, which are globally unique. Named sessions use separate storage to avoid
    conflicts between tools.
    """
    generated = session_id is None or is_generated(session_id)
    return _get_shared_sessions() if generated else ThinkingSessions(MemoryArtifacts())


@cache
def _get_shared_sessions() -> ThinkingSessions:
    return ThinkingSessions(MemoryArtifacts())


def _publish_thought(result: ThoughtResult, ctx: RunContext[Any]) -> None:
    """Publish stage transitions, the thought and any repetition warning."""
    flow = result.thought.flow or {}
    for previous, stage in flow.get("trail", ()):
        ctx.emit(
            StageEvent(
                strategy=flow["strategy"],
                from_stage=previous,
                to_stage=stage,
                thought_id=result.thought_id,
                session_id=result.session_id,
            )
        )
    ctx.emit(_thought_event(result, ctx))
    for warning in result.thought.warnings:
        if warning.code == "repetition":
            data = {"sessionId": result.session_id, "thoughtId": result.thought_id, "message": warning.message}
            ctx.emit(CustomEvent(name="repetition", data=data))


def _thought_event(result: ThoughtResult, ctx: RunContext[Any]) -> ThoughtStreamEvent:
    thought, placed = result.thought, result.placed
    flow = thought.flow or {}

    def get_thought_id(index: int | None) -> str | None:
        return None if index is None else result.session.thought_id(index)

    merged = result.session.newest(flow["merged"]) if "merged" in flow else None
    return ThoughtStreamEvent(
        thought_id=result.thought_id,
        thought_type="reflection" if thought.is_revision or thought.revises_thought is not None else "reasoning",
        content=thought.thought,
        related_to=get_thought_id(placed.follows),
        source="strategy" if flow else "sequential",
        tool_call_id=ctx.call.id if ctx.call is not None else None,
        session=SessionLink(
            session_id=result.session_id,
            number=thought.thought_number,
            total=thought.total_thoughts,
            next_thought_needed=thought.next_thought_needed,
            revises=thought.revises_thought,
            revises_id=get_thought_id(placed.revises),
            branch_id=placed.branch,
            branch_from=thought.branch_from_thought if placed.opens else None,
            merges=flow.get("merged"),
            merges_id=get_thought_id(merged.place) if merged is not None else None,
            stage=flow.get("stage"),
        ),
    )


def _make_refusal_event(error: StageRefused) -> StageEvent:
    return StageEvent(
        strategy=error.strategy, from_stage=error.stage, to_stage=error.target or "", accepted=False, reason=str(error)
    )


def _describe_refusal(error: SessionError | StrategyError) -> str:
    """Return the error as JSON for models and programs."""
    refusal: dict[str, Any] = {"error": str(error), "code": error.code}
    if isinstance(error, InvalidThought) and error.fields:
        refusal["fields"] = error.fields
    if isinstance(error, StageRefused):
        refusal["choices" if isinstance(error, StageChoiceRequired) else "allowed"] = list(error.allowed)
    return orjson.dumps(refusal).decode()


NAME = "sequentialthinking"


class SequentialThinking(SessionTool):
    """Sequential thinking tool. Calls publish a thought and store it in a session."""

    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        thought = ThoughtInput.of(arguments)
        return await self.sessions.think(thought, owner=owner, session_id=self._bound, call_id=call_id)


def sequential_thinking(
    session_id: str | None = None,
    *,
    sessions: ThinkingSessions | None = None,
    owner: Owner | None = None,
    text_tokens: int = 400,
    hidden: bool = False,
) -> SequentialThinking:
    """Return a tool that lets a model think in numbered steps, with revisions and branches.

    Each accepted thought is published as a `thought-stream` event with the source `sequential` and its position in the
    session. `result.thoughts` contains it, like the thoughts of `think_aloud`.

    Args:
        session_id: Binds the tool to a session, which is created with the first thought. The model does not pass the
            id. By default, a call without a session id creates a new session.
        sessions: Storage and limits of the sessions. By default they are kept in memory. Sessions with a generated id
            are shared by all tools of the process. A session with a name belongs to this tool alone.
        owner: Owner of the sessions, or a function that returns it for the context of a run. By default, a bound
            session belongs to the program, and other sessions belong to the conversation.
        text_tokens: Maximum number of tokens of the result of a call, both for the model and in the event. The result
            contains the newest thoughts that fit and the number of earlier ones. The session contains all thoughts.
        hidden: True to hide the calls from clients. The thoughts stay visible.

    Example:
        >>> planner = sequential_thinking("planner")
        >>> agent = Agent("zai:glm-4.7", tools=[planner], thoughts=False)
        >>> await agent.run("Plan the move of a database without downtime.")
        >>> session = await planner.session()
    """
    schema = make_parameters(has_session=session_id is not None)
    definition = ToolDefinition(name=NAME, description=DESCRIPTION, parameters=schema, hidden=hidden)
    return SequentialThinking(definition, session_id, sessions, owner, text_tokens)
