"""Command `stats`: statistics of stored runs and their tools."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import typer

from rxloop.cli import options
from rxloop.cli.database import open_database
from rxloop.cli.terminal import format_table, notify, run_main, write
from rxloop.errors import UnknownRun
from rxloop.memory.tool_history import RunCalls, ToolHistory
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.providers.catalog import find_price
from rxloop.support.text import to_one_line

_CONCURRENT_READS = 20
"""Number of concurrent reads."""

_MAX_SEQUENCES = 10
"""Maximum number of sequences of tools per agent."""


def _to_json(agent: str, records: Sequence[RunRecord], history: ToolHistory) -> dict[str, Any]:
    usages = [(record.usage, find_price(record.model)) for record in records if record.usage is not None]
    costs = [price.of_several(usage) for usage, price in usages if price is not None]
    tools = sorted(history.tools.items(), key=lambda item: (-item[1].calls, item[0]))
    times = [[tool.percentile(50), tool.percentile(95)] for _, tool in tools]
    return {
        "agent": agent,
        "runs": len(records),
        "states": Counter(record.state for record in records),
        "tokens": sum(usage.total_tokens for usage, _ in usages),
        "dollars": sum(costs) if costs else None,
        # `asdict` converts the keys and values of counters to pairs.
        "tools": [
            {"tool": name, **asdict(tool), "failures": {**tool.failures}, "seconds": times[index]}
            for index, (name, tool) in enumerate(tools)
        ],
        "sequences": [{"tools": names, "count": n} for names, n in history.sequences.most_common(_MAX_SEQUENCES)],
    }


def stats(
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one line of JSON per agent.")] = False,
    db: options.Database = None,
) -> None:
    """Show statistics of runs and tools.

    The calls of nested agents are not counted.
    """

    async def main() -> None:
        async with open_database(db, skip_corrupt=True) as log:
            agents = await load_stats(log, agent)
        for index, each in enumerate(agents):
            write(orjson.dumps(each).decode() + "\n" if json else "\n" * (index > 0))
            if not json:
                _write_tables(each)
        if not agents:
            notify("no runs yet" if agent is None else f"no runs of the agent {agent!r}")

    run_main(main())


async def load_stats(log: EventLog, agent: str | None) -> list[dict[str, Any]]:
    """Return the statistics of agents, those with the most runs first.

    Args:
        log: Event log.
        agent: Name of the only agent, or None for all agents.
    """
    records = await log.list_runs(agent_name=agent)
    agents: dict[str, tuple[list[RunRecord], ToolHistory]] = {}
    for start in range(0, len(records), _CONCURRENT_READS):
        page = records[start : start + _CONCURRENT_READS]
        parts = await asyncio.gather(*(_read(log, each.task_id) for each in page))
        for record, events in zip(page, parts, strict=True):
            if events:
                known, history = agents.setdefault(record.agent_name, ([], ToolHistory()))
                known.append(record)
                calls = RunCalls()
                calls.add(events)
                history.add(calls)
    return sorted((_to_json(name, *each) for name, each in agents.items()), key=lambda each: -each["runs"])


async def _read(log: EventLog, task_id: str) -> Sequence[Event]:
    """Return the events of a run, or an empty sequence if it was deleted in the meantime."""
    try:
        return await log.read(task_id)
    except UnknownRun:
        return ()


def _write_tables(agent: Mapping[str, Any]) -> None:
    cost = "" if agent["dollars"] is None else f"${agent['dollars']:.4f}"
    row = (to_one_line(agent["agent"]), f"{agent['runs']:,}", f"{agent['tokens']:,}", cost, _join(agent["states"]))
    write(format_table(("AGENT", "RUNS", "TOKENS", "COST", "STATES"), [row]))
    rows: list[tuple[str, ...]] = []
    for tool in agent["tools"]:
        counts = [tool["calls"], sum(tool["failures"].values()), tool["corrected"], tool["repeats"]]
        cells = [*(f"{count:,}" for count in counts), *(f"{seconds:.2f} s" for seconds in tool["seconds"])]
        used = f"{tool['hits']} of {tool['hits'] + tool['misses']}"
        rows.append((to_one_line(tool["tool"], 40), *cells, used, _join(tool["failures"])))
    names = ("TOOL", "CALLS", "FAILED", "CORRECTED", "REPEATED", "MEDIAN", "P95", "PREDICTED", "FAILURES")
    sequences = [(f"{each['count']:,}", to_one_line(" > ".join(each["tools"]), 100)) for each in agent["sequences"]]
    for head, lines in ((names, rows), (("TIMES", "SEQUENCE"), sequences)):
        if lines:
            write(format_table(head, lines))


def _join(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {to_one_line(name, 20)}" for name, count in Counter(counts).most_common())
