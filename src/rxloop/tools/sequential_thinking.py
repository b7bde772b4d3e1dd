"""`sequentialthinking`: the tool by which a model thinks in numbered steps, with revisions and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from rxloop.errors import ConfigurationError, InvalidThought, SessionError, ToolError
from rxloop.events import CustomEvent, SessionLink, ThoughtStreamEvent
from rxloop.requests import RunContext, ToolDefinition
from rxloop.thinking.sessions import Session, ThinkingSessions, ThoughtInput, ThoughtResult, thought_id
from rxloop.thinking.sessions.teaching import DESCRIPTION, parameters
from rxloop.tools._result import ToolResult

NAME = "sequentialthinking"

Owner = str | Callable[[RunContext[Any]], str]


class SequentialThinking:
    """The tool `sequentialthinking`: each call is a thought of a session, on the stream and kept by a store."""

    def __init__(
        self,
        session_id: str | None = None,
        *,
        sessions: ThinkingSessions | None = None,
        owner: Owner | None = None,
        text_tokens: int = 400,
        hidden: bool = False,
    ) -> None:
        """See `sequential_thinking`."""
        if session_id is not None and not session_id.strip():
            raise ConfigurationError("session_id is blank: give it a name, or leave it out")
        if text_tokens < 1:
            raise ConfigurationError(f"text_tokens={text_tokens!r} must be at least 1")
        self.sessions = sessions if sessions is not None else ThinkingSessions()
        self._bound = session_id
        self._owner = owner
        self._text_tokens = text_tokens
        self._definition = ToolDefinition(
            name=NAME,
            description=DESCRIPTION,
            parameters=parameters(bound=session_id is not None),
            hidden=hidden,
        )

    def __repr__(self) -> str:
        return f"<tool {NAME}{'' if self._bound is None else f' {self._bound}'}>"

    @property
    def definition(self) -> ToolDefinition:
        """Name, description and schema, as they are offered to the model."""
        return self._definition

    @property
    def timeout(self) -> float | None:
        """None: a thought takes no time."""
        return None

    @property
    def idempotent(self) -> bool:
        """True: the same call makes no second thought."""
        return True

    @property
    def approve(self) -> bool:
        """False: thoughts are free."""
        return False

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """True."""
        return True

    async def session(self, *, owner: str = "") -> Session:
        """The session that the tool is bound to, or the one that followed it when it was cleared.

        Args:
            owner: Whose it is, where the tool has an owner for each run.

        Raises:
            ConfigurationError: The tool is bound to no session.
            UnknownSession: Nothing was thought in it yet, or it has expired.
        """
        if self._bound is None:
            raise ConfigurationError("the tool is bound to no session: sequential_thinking(session_id=...) makes one")
        return await self.sessions.get_session(
            self._bound, owner=self._owner if isinstance(self._owner, str) else owner
        )

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        """Take one thought.

        Raises:
            ToolError: The thought does not fit, or there is no such session; nothing was stored.
        """
        slot = f"{ctx.task_id}:{ctx.step}:{ctx.index}" if ctx.run is not None and ctx.call is not None else None
        try:
            given = ThoughtInput.of(arguments)
            result = await self.sessions.think(given, owner=self._owner_of(ctx), session_id=self._bound, call_id=slot)
        except SessionError as error:
            raise ToolError(_refusal(error)) from error
        if ctx.run is not None and result.thought_id not in ctx.state.thoughts:
            _tell(result, ctx)
        return ToolResult(result.to_json(), result.to_text(self._text_tokens))

    def _owner_of(self, ctx: RunContext[Any]) -> str:
        if self._owner is not None:
            return self._owner if isinstance(self._owner, str) else self._owner(ctx)
        # A session that the program has named is the program's; those of the model end with its conversation.
        return "" if self._bound is not None or ctx.run is None else ctx.context_id


def sequential_thinking(
    session_id: str | None = None,
    *,
    sessions: ThinkingSessions | None = None,
    owner: Owner | None = None,
    text_tokens: int = 400,
    hidden: bool = False,
) -> SequentialThinking:
    """The tool by which a model thinks in numbered steps, which it may revise and branch from.

    Each accepted thought is a `thought-stream` event with the source `sequential` and its place in the session, and
    stands in `result.thoughts` beside those of `think_aloud`.

    Args:
        session_id: Binds the tool to a session, which begins with the first thought; the model need not know its id.
            Without it a call that names no session begins one.
        sessions: Where the sessions are kept, and by what rules; in memory by default, for this tool alone.
        owner: Whose they are, or a function of the run's context that tells it. By default, a session that is bound
            belongs to the program, and one that is not to the conversation.
        text_tokens: What the answer to a thought may take in the conversation, in tokens: the newest thoughts that fit
            and a word on how many came before. The result on the stream has all.
        hidden: Clients see the thoughts and not the calls.

    Example:
        >>> planner = sequential_thinking("planner")
        >>> agent = Agent("zai:glm-4.7", tools=[planner], thoughts=False)
        >>> await agent.run("Plan the move of a database without downtime.")
        >>> session = await planner.session()
    """
    return SequentialThinking(session_id, sessions=sessions, owner=owner, text_tokens=text_tokens, hidden=hidden)


def _tell(result: ThoughtResult, ctx: RunContext[Any]) -> None:
    """Put the thought on the stream, and a word when it goes in circles."""
    ctx.emit(thought_event(result, ctx))
    for warning in result.thought.warnings:
        if warning.code == "repetition":
            data = {"sessionId": result.session_id, "thoughtId": result.thought_id, "message": warning.message}
            ctx.emit(CustomEvent(name="repetition", data=data))


def thought_event(result: ThoughtResult, ctx: RunContext[Any]) -> ThoughtStreamEvent:
    """The event of an accepted thought."""
    thought, placed = result.thought, result.placed

    def id_of(place: int | None) -> str | None:
        return None if place is None else thought_id(result.session_id, place)

    return ThoughtStreamEvent(
        thought_id=result.thought_id,
        thought_type="reflection" if thought.is_revision or thought.revises_thought is not None else "reasoning",
        content=thought.thought,
        related_to=id_of(placed.follows),
        source="sequential",
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
        ),
    )


def _refusal(error: SessionError) -> str:
    """What is wrong, as JSON that a model reads as well as a program."""
    said: dict[str, Any] = {"error": str(error), "code": error.code}
    if isinstance(error, InvalidThought) and error.fields:
        said["fields"] = error.fields
    return orjson.dumps(said).decode()
