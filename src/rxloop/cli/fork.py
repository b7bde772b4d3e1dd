"""`rxloop fork`: begin a new run with a part of another one."""

from __future__ import annotations

from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.agent_options import AgentOptions
from rxloop.cli.live_runs import LiveRuns, exit_code
from rxloop.cli.options import ThoughtLevel, as_text, pairs
from rxloop.cli.store import find_run, first_event, opened
from rxloop.cli.terminal import running


def fork(
    run: options.RunId,
    at: Annotated[
        int,
        typer.Option("--at", metavar="SEQ", min=0, help="The last event to take over, as 'rxloop show' numbers them."),
    ],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Another question at 1, a new message after it."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=JSON", help="What a tool call gave; may be repeated."),
    ] = None,
    model: options.OtherModel = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    mcp: options.MCP = None,
    agent: options.AgentName = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    db: options.Database = None,
) -> None:
    """Begin a new run with a part of another one.

    It goes on in a way of its own; the other one stays as it is.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url, mcp=tuple(mcp or ()))

    async def main() -> int:
        changed = pairs(results, "--result")
        async with opened(db) as log:
            record = await find_run(log, run)
            first = await first_event(log, record.task_id)
            made = given.make(recorded=first.model if first is not None else None)
            live = LiveRuns(thoughts, json, log, db, given.flags())
            async with made.logging_to(log) as ready:
                forked = ready.agent.fork(
                    record.task_id, at, prompt=prompt and as_text(prompt), results=changed or None, model=ready.model
                )
                return exit_code(await live.carry_out(ready, forked))

    running(main())
