"""Strategy tool with guided stages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson
from typing_extensions import override

from rxloop.errors import ConfigurationError, InvalidThought
from rxloop.pipeline.requests import ToolDefinition
from rxloop.strategies.catalog import STRATEGIES, get_stages
from rxloop.support.misuse import check_minimum, check_type
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import ThoughtInput, make_parameters
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages.stage_manager import LOOP_CAP
from rxloop.thinking.stages.staged_session import Flow, StagedInput, index_definitions
from rxloop.tools.sequential_thinking import Owner, SessionTool

NAME = "strategic_thinking"

_MAX_FLOWS = 256
"""Maximum number of cached flows. A cached flow need not be rebuilt from the earlier thoughts of its session."""

_DESCRIPTION = """\
Think a problem through by a reasoning strategy, which leads you from stage to stage. One call a thought.

- {choose}
- Each answer has your stage, nextStages with those that may follow, and guidance: what to do there.
- Leave stage out where one stage follows. Where several may follow, name one in stage. To add a thought to the \
current stage, name that stage.
- Give what the stage asks for (missingFields tells), as fields of their own beside the others.
- To follow several ways, open a branch for each with branchFromThought and branchId; each has its own place in the \
flow. Give an evaluationScore in a branch, keep=1 to keep the best and give up the others, and mergeBranch to go \
on with a branch on the main line.
- Set nextThoughtNeeded to false in the last stage, such as final_response, and then give the answer."""
"""Tool description, limited to 1,024 characters by some vendors."""

_PROPERTIES: dict[str, dict[str, Any]] = {
    "stage": {"type": "string", "description": "The stage of this thought; needed where several may follow."},
    "evaluationScore": {"type": "number", "description": "How good this branch is; the larger the better."},
    "keep": {
        "type": "integer",
        "minimum": 1,
        "description": "Keep so many of the branches, those with the highest scores, and give up the others.",
    },
    "mergeBranch": {"type": "string", "description": "The branch that ends in this thought, which goes on with it."},
}


class StrategicThinking(SessionTool):
    """Tool `strategic_thinking`. Each call adds a thought to a stage of a strategy."""

    def __init__(
        self,
        *strategies: StrategyDefinition | str,
        session_id: str | None = None,
        sessions: ThinkingSessions | None = None,
        owner: Owner | None = None,
        loop_cap: int = LOOP_CAP,
        budget: int | None = None,
        strict: bool = False,
        text_tokens: int = 600,
        hidden: bool = False,
    ) -> None:
        """Create the tool. The arguments are described in `strategic_thinking`."""
        definitions = tuple(
            get_stages(item) if isinstance(item, str) else item for item in strategies or STRATEGIES.values()
        )
        check_minimum(0, loop_cap=loop_cap)
        check_minimum(1, optional=True, budget=budget)
        for table in definitions:
            check_type("a strategy", table, StrategyDefinition, "a StrategyDefinition or its name")
        definition = ToolDefinition(
            name=NAME,
            description=_description(definitions),
            parameters=_make_parameters(definitions, has_session=session_id is not None),
            hidden=hidden,
        )
        super().__init__(definition, session_id, sessions, owner, text_tokens)
        self._definitions = index_definitions(definitions)
        self._loop_cap = loop_cap
        self._budget = budget
        self._strict = strict
        self._flows: OrderedDict[tuple[str, str], tuple[tuple[int, int], int, Flow]] = OrderedDict()
        for table in definitions:
            if budget is not None and budget <= (steps := table.steps_to_end(table.initial)):
                raise ConfigurationError(
                    f"budget must be at least {steps + 1} for the strategy {table.name!r}, got {budget!r}"
                )

    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        return await self.think(arguments, owner=owner, session_id=self._bound, call_id=call_id)

    async def think(
        self,
        arguments: dict[str, Any],
        *,
        owner: str | None = None,
        session_id: str | None = None,
        call_id: str | None = None,
    ) -> ThoughtResult:
        """Add a thought to its stage without a run, for example for another protocol.

        Args:
            arguments: Arguments of the tool.
            owner: Owner of the session; see `ThinkingSessions.think`.
            session_id: Id of the session, which is created if it does not exist. Overrides the id in the arguments.
            call_id: Id of the tool call. A repeated call adds no second thought.

        Raises:
            SessionError: If the thought is invalid, or its session unknown or full.
            StrategyError: If the stage may not follow, or the strategy is unknown.
        """
        staged = StagedInput.of(arguments)
        assert isinstance(staged, StagedInput)
        size, max_length = len(orjson.dumps(staged.fields, default=str)), self.sessions.rules.max_length
        if size > max_length:
            raise InvalidThought(f"the stage fields must take at most {max_length} bytes, got {size}; shorten them")
        admitted: list[Flow] = []

        def admit(session: Session, thought: ThoughtInput) -> dict[str, Any]:
            assert isinstance(thought, StagedInput)
            # Removed from the cache while it changes. If the thought is rejected halfway, the flow is rebuilt.
            flow = self._flow(session)
            fields = flow.admit(session, thought, strict=self._strict)
            admitted.append(flow)
            return fields

        result = await self.sessions.think(staged, owner=owner, session_id=session_id, call_id=call_id, admit=admit)
        if admitted:
            session = result.session
            self._flows[session.owner, session.session_id] = (_get_start(session), len(session), admitted[-1])
            if len(self._flows) > _MAX_FLOWS:
                self._flows.popitem(last=False)
        return result

    def _flow(self, session: Session) -> Flow:
        """Pop the cached flow of a session and update it with recent thoughts."""
        start, length, flow = self._flows.pop((session.owner, session.session_id), ((0, 0), 0, None))
        if flow is None or start != _get_start(session) or length > len(session):
            length, flow = 0, Flow(self._definitions, loop_cap=self._loop_cap, budget=self._budget)
        for placed in session.list_placed(length + 1):
            flow.follow(session, placed)
        return flow

    @override
    def to_text(self, result: ThoughtResult) -> str:
        flow = result.thought.flow or {}
        table = self._definitions.get(flow.get("strategy", ""))
        guidance = {name: table.stage(name).prompt for name in flow.get("nextStages", ())} if table is not None else {}
        return result.to_text(self._text_tokens, guidance=guidance)


def strategic_thinking(
    *strategies: StrategyDefinition | str,
    session_id: str | None = None,
    sessions: ThinkingSessions | None = None,
    owner: Owner | None = None,
    loop_cap: int = LOOP_CAP,
    budget: int | None = None,
    strict: bool = False,
    text_tokens: int = 600,
    hidden: bool = False,
) -> StrategicThinking:
    """Return a tool that guides a model through the stages of a reasoning strategy.

    The sessions are those of `sequential_thinking`, with a position in the strategy for the main branch and each other
    branch. Every thought is published as a `thought-stream` event, and every change of stage as a `stage` event,
    including rejected changes.

    Args:
        *strategies: Names or definitions of the strategies that the model may choose from. Defaults to all nine. The
            model need not know the name of a single strategy.
        session_id: Binds the tool to a session, as for `sequential_thinking`.
        sessions: Storage of the sessions.
        owner: Owner of the sessions, as for `sequential_thinking`.
        loop_cap: Maximum number of times that each loop of a strategy may be repeated.
        budget: Number of thoughts on a branch. When it just suffices to reach the end, only the shortest path is
            offered.
        strict: True to reject a thought without the fields of its stage. Otherwise the result lists the missing fields.
        text_tokens: Maximum number of tokens of the result of a call in the conversation.
        hidden: True to hide the calls from clients. The thoughts stay visible.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=[strategic_thinking("tree_of_thoughts", budget=40)])

    Raises:
        ConfigurationError: If a strategy is unknown, or the budget is too small for its shortest path.
    """
    return StrategicThinking(
        *strategies,
        session_id=session_id,
        sessions=sessions,
        owner=owner,
        loop_cap=loop_cap,
        budget=budget,
        strict=strict,
        text_tokens=text_tokens,
        hidden=hidden,
    )


def _get_start(session: Session) -> tuple[int, int]:
    """Return a value that changes when a session is restarted."""
    return session.created, session.version


def _description(strategies: tuple[StrategyDefinition, ...]) -> str:
    choose = "Name the strategy in your first call." if len(strategies) > 1 else "The flow begins with your first call."
    if len(strategies) > 1:
        choose += " At a decision point you may begin another one by naming it."
    else:
        choose += f" The strategy is {' '.join(map(_describe, strategies))}"
    return _DESCRIPTION.format(choose=choose)


def _describe(table: StrategyDefinition) -> str:
    return f"{table.name}: {table.when} It begins with {table.initial}."


def _make_parameters(strategies: tuple[StrategyDefinition, ...], *, has_session: bool) -> dict[str, Any]:
    schema = make_parameters(has_session=has_session)
    choice: dict[str, Any] = {}
    if len(strategies) > 1:
        choice["strategy"] = {
            "type": "string",
            "enum": [table.name for table in strategies],
            "description": "\n- ".join(["The strategy; needed in the first thought:", *map(_describe, strategies)]),
        }
    # Additional properties must be allowed because stages define custom fields.
    return {**schema, "properties": {**schema["properties"], **choice, **_PROPERTIES}, "additionalProperties": True}
