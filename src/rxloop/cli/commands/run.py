"""`rxloop run`: ask a model, once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rxloop.cli.agent_loader import AgentOptions
from rxloop.cli.live_run import conversing, exit_code
from rxloop.cli.options import LogSelection, RunDisplay, as_text
from rxloop.cli.terminal import read_all, running
from rxloop.errors import ConfigurationError

Words = Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="'-', or nothing, takes it from a pipe.")]


def run(words: Words = None, *, agent: AgentOptions, display: RunDisplay, selection: LogSelection) -> None:
    """Ask a model.

    The answer streams to stdout; what the model does on the way, to stderr.

    Exit codes: 0 an answer, 1 the run failed, 2 wrong usage, 3 it waits for input, 130 cancelled.
    """

    async def main() -> int:
        question = _question(words or [])
        async with conversing(agent, display, selection) as (ready, session, context_id):
            asked = ready.agent.run(question, context_id=context_id, model=ready.model, strategy=agent.strategy)
            return exit_code(await session.carry_out(ready, asked, agent.strategy))

    running(main())


def _question(words: list[str]) -> str:
    """Read the question: what was typed, and what comes through a pipe where `-` stands."""
    if not words and sys.stdin.isatty():
        raise ConfigurationError('there is no question: rxloop run "Why is the sky blue?", or give it through a pipe')
    parts = [as_text(" ".join(word for word in words if word != "-"))]
    if not words or "-" in words:
        parts.append(read_all().strip())
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise ConfigurationError('the question is empty: rxloop run "Why is the sky blue?", or give it through a pipe')
    return question
