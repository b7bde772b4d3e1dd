"""The tool for sequential thinking, and the base of tools whose calls are thoughts."""

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
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.session_artifacts import is_generated
from rxloop.thinking.sessions.thought import DESCRIPTION, ThoughtInput, parameters, wrong_with_name
from rxloop.tools.result import ToolResult

Owner = str | Callable[[RunContext[Any]], str]


class SessionTool(ABC):
    """A tool whose calls are thoughts of a session, on the stream and kept in an artifact store."""

    timeout: float | None = None
    idempotent = True  # The same call makes no second thought.
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
            raise ConfigurationError("session_id is blank: give it a name, or leave it out")
        if session_id is not None and (wrong := wrong_with_name(session_id)) is not None:
            raise ConfigurationError(f"session_id={session_id[:60]!r} {wrong}")
        if text_tokens < 1:
            raise ConfigurationError(f"text_tokens={text_tokens!r} must be at least 1")
        self.sessions = sessions if sessions is not None else _kept_by_default(session_id)
        self.definition = definition
        self._bound = session_id
        self._owner = owner
        self._text_tokens = text_tokens

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}{'' if self._bound is None else f' {self._bound}'}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """True."""
        return True

    async def session(self, *, owner: str | None = None) -> Session:
        """Get the session that the tool is bound to.

        Args:
            owner: Whose it is, where the tool has an owner for each run.

        Raises:
            ConfigurationError: The tool is bound to no session.
            UnknownSession: Nothing was thought in it yet, or it has expired.
        """
        if self._bound is None:
            raise ConfigurationError(f"{self.definition.name} is bound to no session: give it a session_id")
        return await self.sessions.get_session(
            self._bound, owner=self._owner if isinstance(self._owner, str) else owner
        )

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        """Take one thought.

        Raises:
            ToolError: The thought does not fit, or the session is unknown; nothing was stored.
        """
        slot = f"{ctx.task_id}:{ctx.step}:{ctx.index}" if ctx.run is not None and ctx.call is not None else None
        try:
            result = await self._think(arguments, self._owner_of(ctx), slot)
        except (SessionError, StrategyError) as error:
            if ctx.run is not None and isinstance(error, StageRefused) and error.target is not None:
                ctx.emit(_refused(error))
            raise ToolError(_refusal(error)) from error
        if ctx.run is not None and result.thought_id not in ctx.state.thoughts:
            _tell(result, ctx)
        return ToolResult(result.to_published(self._text_tokens), self._text(result))

    @abstractmethod
    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        """Add the thought of a call to its session."""

    def _text(self, result: ThoughtResult) -> str:
        return result.to_text(self._text_tokens)

    def _owner_of(self, ctx: RunContext[Any]) -> str | None:
        if self._owner is not None:
            return self._owner if isinstance(self._owner, str) else self._owner(ctx)
        # A session that the program has named belongs to the program, or to its owner at the time when its id was
        # given out; those of the model end with its conversation.
        if self._bound is not None:
            return None
        return "" if ctx.run is None else ctx.context_id


def _kept_by_default(session_id: str | None) -> ThinkingSessions:
    """Choose where a tool keeps its sessions by default.

    An id that was given out is unique, and leads to its session from any tool of the process. A name belongs to one
    tool: another tool may use the same.
    """
    generated = session_id is None or is_generated(session_id)
    return _of_the_process() if generated else ThinkingSessions(MemoryArtifacts())


@cache
def _of_the_process() -> ThinkingSessions:
    return ThinkingSessions(MemoryArtifacts())


def _tell(result: ThoughtResult, ctx: RunContext[Any]) -> None:
    """Put the thought on the stream, after the stages that it goes through; warn when it goes in circles."""
    flow = result.thought.flow or {}
    for before, stage in flow.get("trail", ()):
        ctx.emit(
            StageEvent(
                strategy=flow["strategy"],
                from_stage=before,
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

    def id_of(place: int | None) -> str | None:
        return None if place is None else result.session.thought_id(place)

    merged = result.session.newest(flow["merged"]) if "merged" in flow else None
    return ThoughtStreamEvent(
        thought_id=result.thought_id,
        thought_type="reflection" if thought.is_revision or thought.revises_thought is not None else "reasoning",
        content=thought.thought,
        related_to=id_of(placed.follows),
        source="strategy" if flow else "sequential",
        tool_call_id=ctx.call.id if ctx.call is not None else None,
        session=SessionLink(
            session_id=result.session_id,
            number=thought.thought_number,
            total=thought.total_thoughts,
            next_thought_needed=thought.next_thought_needed,
            revises=thought.revises_thought,
            revises_id=id_of(placed.revises),
            branch_id=placed.branch,
            branch_from=thought.branch_from_thought if placed.opens else None,
            merges=flow.get("merged"),
            merges_id=id_of(merged.place) if merged is not None else None,
            stage=flow.get("stage"),
        ),
    )


def _refused(error: StageRefused) -> StageEvent:
    return StageEvent(
        strategy=error.strategy, from_stage=error.stage, to_stage=error.target or "", accepted=False, reason=str(error)
    )


def _refusal(error: SessionError | StrategyError) -> str:
    """Say what is wrong, as JSON for models and programs."""
    refusal: dict[str, Any] = {"error": str(error), "code": error.code}
    if isinstance(error, InvalidThought) and error.fields:
        refusal["fields"] = error.fields
    if isinstance(error, StageRefused):
        refusal["choices" if isinstance(error, StageChoiceRequired) else "allowed"] = list(error.allowed)
    return orjson.dumps(refusal).decode()


NAME = "sequentialthinking"


class SequentialThinking(SessionTool):
    """The tool `sequentialthinking`: each call is a thought of a session, on the stream and stored as an artifact."""

    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        given = ThoughtInput.of(arguments)
        return await self.sessions.think(given, owner=owner, session_id=self._bound, call_id=call_id)


def sequential_thinking(
    session_id: str | None = None,
    *,
    sessions: ThinkingSessions | None = None,
    owner: Owner | None = None,
    text_tokens: int = 400,
    hidden: bool = False,
) -> SequentialThinking:
    """Make the tool by which a model thinks in numbered steps, which it may revise and branch from.

    Each accepted thought is a `thought-stream` event with the source `sequential` and its place in the session, and
    stands in `result.thoughts` beside those of `think_aloud`.

    Args:
        session_id: Binds the tool to a session, which begins with the first thought; the model need not know its id.
            Without it a call that names no session begins one.
        sessions: Where the sessions are kept, and by what rules. By default in memory: under an id that was given out
            for all tools of the process, under a name for this tool alone.
        owner: Whose they are, or a function of the context of the run that says so. By default, a session that is bound
            belongs to the program, and one that is not to the conversation.
        text_tokens: The most tokens that the answer to a thought may take in the conversation: it has the newest
            thoughts that fit, and says how many came before. So does the result on the stream; the session has all.
        hidden: Clients see the thoughts and not the calls.

    Example:
        >>> planner = sequential_thinking("planner")
        >>> agent = Agent("zai:glm-4.7", tools=[planner], thoughts=False)
        >>> await agent.run("Plan the move of a database without downtime.")
        >>> session = await planner.session()
    """
    schema = parameters(bound=session_id is not None)
    definition = ToolDefinition(name=NAME, description=DESCRIPTION, parameters=schema, hidden=hidden)
    return SequentialThinking(definition, session_id, sessions, owner, text_tokens)
