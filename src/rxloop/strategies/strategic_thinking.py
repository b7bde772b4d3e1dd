"""The tool that guides a model through stages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson

from rxloop.errors import ConfigurationError, InvalidThought
from rxloop.pipeline.requests import ToolDefinition
from rxloop.strategies.catalog import STRATEGIES, get_stages
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import ThoughtInput, parameters
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages.stage_manager import LOOP_CAP
from rxloop.thinking.stages.staged_session import Flow, StagedInput, index_definitions
from rxloop.tools.sequential_thinking import Owner, SessionTool

NAME = "strategic_thinking"

_KEPT = 256
"""Flows that are cached, so that a new thought does not cost folding those before it."""

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
"""With what chooses a strategy under 1,024 characters, which is all that some vendors accept."""

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
    """The tool `strategic_thinking`: each call is a thought in a stage of a strategy."""

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
        """See `strategic_thinking`."""
        found = tuple(
            get_stages(given) if isinstance(given, str) else given for given in strategies or STRATEGIES.values()
        )
        definition = ToolDefinition(
            name=NAME,
            description=_description(found),
            parameters=_parameters(found, bound=session_id is not None),
            hidden=hidden,
        )
        super().__init__(definition, session_id, sessions, owner, text_tokens)
        self._definitions = index_definitions(found)
        self._loop_cap = loop_cap
        self._budget = budget
        self._strict = strict
        self._flows: OrderedDict[tuple[str, str], tuple[tuple[int, int], int, Flow]] = OrderedDict()
        for table in found:
            if budget is not None and budget <= (steps := table.steps_to_end(table.initial)):
                raise ConfigurationError(
                    f"budget={budget!r} is too small for the strategy {table.name!r}, whose shortest way has "
                    f"{steps + 1} thoughts"
                )

    async def _think(self, arguments: dict[str, Any], owner: str | None, call_id: str | None) -> ThoughtResult:
        given = StagedInput.of(arguments)
        assert isinstance(given, StagedInput)
        size, most = len(orjson.dumps(given.fields, default=str)), self.sessions.rules.max_length
        if size > most:
            raise InvalidThought(f"the fields of the stage take {size} bytes, and {most} are allowed. Say it in less")
        admitted: list[Flow] = []

        def admit(session: Session, thought: ThoughtInput) -> dict[str, Any]:
            assert isinstance(thought, StagedInput)
            # Taken out while it moves: when the thought is refused half way, the flow is folded again.
            flow = self._flow(session)
            kept = flow.admit(session, thought, strict=self._strict)
            admitted.append(flow)
            return kept

        result = await self.sessions.think(given, owner=owner, session_id=self._bound, call_id=call_id, admit=admit)
        if admitted:
            session = result.session
            self._flows[session.owner, session.session_id] = (_begun(session), len(session), admitted[-1])
            if len(self._flows) > _KEPT:
                self._flows.popitem(last=False)
        return result

    def _flow(self, session: Session) -> Flow:
        """The flow of a session as it stands, which is the caller's from now on."""
        begun, length, flow = self._flows.pop((session.owner, session.session_id), ((0, 0), 0, None))
        if flow is None or begun != _begun(session) or length > len(session):
            length, flow = 0, Flow(self._definitions, loop_cap=self._loop_cap, budget=self._budget)
        for placed in session.placed(length + 1):
            flow.follow(session, placed)
        return flow

    def _text(self, result: ThoughtResult) -> str:
        flow = result.thought.flow or {}
        found = self._definitions.get(flow.get("strategy", ""))
        guidance = {name: found.stage(name).prompt for name in flow.get("nextStages", ())} if found is not None else {}
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
    """Make the tool that guides a model through the stages of a reasoning strategy.

    Its sessions are those of `sequential_thinking`, with a place in the strategy for the main line and for each branch.
    Every thought is a `thought-stream` event, and every change of stage a `stage` event; so is one that is refused.

    Args:
        *strategies: Those that the model may choose from, by name or your own; all nine by default. If there
            is one alone, the model need not know its name.
        session_id: Binds the tool to a session, as for `sequential_thinking`.
        sessions: Where the sessions are kept.
        owner: Whose they are, as for `sequential_thinking`.
        loop_cap: How often each way back of a strategy may be taken; after that the way out is what is left.
        budget: The thoughts of a line; when they are just enough for the way to the end, only that is offered.
        strict: Refuse a thought that lacks what its stage asks for; otherwise the answer says what is missing.
        text_tokens: The most tokens that the answer to a thought may take in the conversation.
        hidden: Clients see the thoughts and not the calls.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=[strategic_thinking("tree_of_thoughts", budget=40)])

    Raises:
        ConfigurationError: A strategy is unknown, or the budget is too small for its shortest way.
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


def _begun(session: Session) -> tuple[int, int]:
    """Tell a session from itself before it was begun again."""
    return session.created, session.version


def _description(strategies: tuple[StrategyDefinition, ...]) -> str:
    choose = "Name the strategy in your first call." if len(strategies) > 1 else "The flow begins with your first call."
    if len(strategies) > 1:
        choose += " At a decision point you may begin another one by naming it."
    else:
        choose += f" The strategy is {' '.join(map(_line, strategies))}"
    return _DESCRIPTION.format(choose=choose)


def _line(table: StrategyDefinition) -> str:
    return f"{table.name}: {table.when} It begins with {table.initial}."


def _parameters(strategies: tuple[StrategyDefinition, ...], *, bound: bool) -> dict[str, Any]:
    schema = parameters(bound=bound)
    chosen: dict[str, Any] = {}
    if len(strategies) > 1:
        chosen["strategy"] = {
            "type": "string",
            "enum": [table.name for table in strategies],
            "description": "\n- ".join(["The strategy; needed in the first thought:", *map(_line, strategies)]),
        }
    # Open: the fields that a stage asks for stand beside those that every thought has.
    return {**schema, "properties": {**schema["properties"], **chosen, **_PROPERTIES}, "additionalProperties": True}
