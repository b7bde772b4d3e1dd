"""`sequentialthinking`: the tool by which a model thinks in numbered steps, with revisions and branches."""

from __future__ import annotations

from typing import Any

from rxloop.pipeline.requests import ToolDefinition
from rxloop.thinking.sessions import ThinkingSessions, ThoughtInput, ThoughtResult
from rxloop.thinking.sessions.teaching import DESCRIPTION, parameters
from rxloop.tools._session_tool import Owner, SessionTool

NAME = "sequentialthinking"


class SequentialThinking(SessionTool):
    """The tool `sequentialthinking`: each call is a thought of a session, on the stream and kept by a store."""

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
