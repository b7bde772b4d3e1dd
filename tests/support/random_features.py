"""Random features for `random_pipelines`: foreign schemas, strategies, goals, memory, thinking, views and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

from rxloop import (
    Agent,
    Compressor,
    EventLog,
    Limits,
    Operator,
    RunContext,
    SemanticCompressor,
    SlidingWindowCompressor,
    TokenBudgetCompressor,
    client_tool,
    op,
    sequential_thinking,
    strategic_thinking,
    strategies,
    tool,
)
from rxloop.errors import ConfigurationError
from rxloop.memory import Experience, Memory
from rxloop.pipeline import ThinkingResult
from rxloop.testing import ScriptedModel, call
from rxloop.tools import goal_tool
from rxloop.tools.mcp import mcp
from support.mcp_servers import raw
from support.span_collector import SpanCollector

PROMPT = "Go to the harbour of Bergen."
PATTERNS = ("^(a+)+$", "^(a|a)*$", ".{0,2000}x.{0,2000}y", "(?:[^a]?[^b]?[^c]?){0,300}$q", "(", "^(?=a)a+\\Z")
LEVELS = [f"d{number}" for number in range(40)]
SCHEMAS: tuple[dict[str, Any], ...] = (
    *({"type": "object", "properties": {"a": {"pattern": pattern}}} for pattern in PATTERNS),
    {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}},
    {"type": "object", "properties": {"tree": {"$ref": "#"}}, "required": ["tree"]},
    {"type": "object", "$ref": "#"},
    {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {
            **{name: {"anyOf": [{"$ref": f"#/$defs/{other}"}] * 2} for name, other in pairwise(LEVELS)},
            LEVELS[-1]: {"type": "integer"},
        },
    },
    {"type": "object", "properties": {"a": {"items": {"anyOf": [{"const": n} for n in range(300)]}}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema"}}},
    {"type": "array"},
    {"type": "nonsense"},
    {"type": "object", "properties": None, "required": None},
    {"type": "object", "properties": {"a": 5}, "required": "a"},
    {"anyOf": [], "oneOf": [True, False], "not": {}},
)
"""Schemas of clients and MCP servers: slow, recursive, exponential or invalid."""
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"a": "a" * 3_000 + "!"},
    {"a": "ab漢" * 2_000, "a" * 40 + "!": 1},
    {"a": ["x"] * 1_000},
    {"tree": {"tree": {"tree": {"tree": {}}}}},
)
VALID: dict[str, tuple[dict[str, Any], ...]] = {
    "child": ({"prompt": "Look."},),
    "parent": ({"prompt": "Look."},),
    "hostile": ARGUMENTS,
    "page": ARGUMENTS,
    "update_goals": (
        {"goals": [{"id": "b", "title": "Beta", "parent": "a", "depends_on": ["b"]}]},
        {"goals": [{"id": "b", "title": "Beta", "status": "active"}, {"id": "a", "status": "done"}]},
    ),
    "sequentialthinking": ({"thought": "So.", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True},),
    "strategic_thinking": ({"strategy": "linear", "thought": "So.", "stage": "start"},),
    **{f"mcp__tool{number}": ({}, *ARGUMENTS) for number in range(5)},
}
"""Arguments by tool, most of them valid. Other tools have none."""
CONTENTS = (
    *("Hm.", "Next: conclude", "Next: revise", "Score: 0.4", "Answer: 4", "Follow up: Why?", "Done: yes"),
    *("So the final answer is: 4", "1. add\n2. multiply", 'Plan: look. #E1 = look[{"a": "#E1"}]', "Holds: no", ""),
)
"""Answers that strategies can read."""
STRATEGIES: tuple[Any, ...] = (
    *(strategies.linear, strategies.chain_of_thought, strategies.react, strategies.rewoo, strategies.scratchpad),
    *(strategies.self_ask, strategies.self_consistency, strategies.step_back, strategies.tree_of_thoughts),
)


@tool(read_only=True)
async def look(ctx: RunContext[Any]) -> str:
    """Look around."""
    await asyncio.sleep(0.01)
    return "a harbour"


def make_client_tool(random: Random, name: str) -> Any:
    """Create a client tool with a foreign schema, or return None if its schema is refused."""
    try:
        return client_tool(name, random.choice(SCHEMAS), result=random.choice((None, {}, *SCHEMAS)))
    except ConfigurationError:
        return None


class Features:
    """Random features of a pipeline. Half of the pipelines have none."""

    def __init__(self, seed: int, model: Any, log: EventLog | None) -> None:
        random = self.random = Random(f"features {seed}")
        self._exists = random.random() < 0.5
        self._thinking_model = model
        self.names: list[str] = []
        self.strategy: Any = random.choice(STRATEGIES) if self._chance(0.3) else None
        self.spans = SpanCollector() if self._chance(0.3) else None
        self.views: list[Any] = []
        self.loop = self._make_loop(log)
        self.is_first = random.random() < 0.5
        """True if the features precede the faulty operators."""
        self.at_end: list[Operator] = []
        if self.spans is not None:
            view = self.spans.view(iterations=random.random() < 0.5, content=random.random() < 0.5)
            self.views += [view, op.stats(), op.thought_graph(), op.usage()]
            self.at_end.append(op.current_span(view))
        self.tools: list[Any] = []
        if self._exists:
            self.tools = [look, goal_tool, sequential_thinking(), strategic_thinking()]
            self.tools += filter(None, [make_client_tool(random, "hostile")])
        self.servers = [random.choice(SCHEMAS) for _ in range(5)] if self._chance(0.04) else []
        """Schemas of the tools of an MCP server."""
        self.client_tools: list[dict[str, Any]] = []
        if self._chance(0.2):
            self.client_tools = [{"name": "page", "parameters": random.choice(SCHEMAS)}]
        self.tool_names: tuple[str, ...] = (
            *("look", "update_goals", "sequentialthinking", "strategic_thinking", "hostile", "parent"),
            *(each["name"] for each in self.client_tools),
            *(f"mcp__tool{number}" for number in range(len(self.servers))),
        )
        self.cancel_at = random.randint(1, 40) if self._chance(0.2) else None
        """Number of the event whose subscriber cancels the run."""
        self.crashes = self._chance(0.3)
        self.on_input = self._answer if self._chance(0.2) else None
        self.limits = Limits(
            conclude=random.random() < 0.3, depth=random.choice((0, 1, 5)), width=random.choice((1, 20))
        )
        if not self._exists:
            self.limits = Limits()

    def __repr__(self) -> str:
        strategy = getattr(self.strategy, "__name__", None)
        return (
            f"features {self.names}, strategy {strategy}, spans {self.spans is not None}, mcp {self.servers}, "
            f"client tools {self.client_tools}, tools {self.tools}, cancel at {self.cancel_at}, "
            f"crashes {self.crashes}, on_input {self.on_input is not None}"
        )

    def _chance(self, odds: float) -> bool:
        return self.random.random() < odds and self._exists

    async def _answer(self, _: Any) -> Any:
        await asyncio.sleep(self.random.choice((0, 0.02)))
        if self.random.random() < 0.2:
            raise ValueError("nobody is there")
        return True

    def _make_loop(self, log: EventLog | None) -> list[Any]:
        random = self.random
        operators: dict[str, Any] = {"goals": op.goals({"id": "a", "title": "Alpha"})}
        if log is not None:
            memory = Memory(log)
            operators |= {
                "recall": op.recall(memory),
                "lessons": op.recall(Experience(memory)),
                "predict": op.predict_context(Experience(memory)),
            }
        operators["compress"] = op.compress(self._make_compressor(), every=random.choice((None, 1, op.adaptive())))
        operators["think"] = op.thinking_phase(
            self._make_compressor(), think=self._think, timeout=0.05, publish=random.random() < 0.5
        )
        operators["thinking model"] = op.thinking_phase(
            self._make_compressor(), thinking_model=self._thinking_model, timeout=0.05
        )
        self.names = [name for name in operators if self._chance(0.3)]
        return [operators[name] for name in self.names]

    def _make_compressor(self) -> Compressor:
        random = self.random
        kind = random.choice((SlidingWindowCompressor, TokenBudgetCompressor, SemanticCompressor))
        return kind(max_tokens=random.choice((60, 400, 4_000)))

    async def _think(self, history: Sequence[Any], workspace: str, results: Sequence[Any], budget: Any) -> Any:
        match self.random.randrange(6):
            case 0:
                return ThinkingResult(current_state="Halfway.", next_actions=("Go on.",))
            case 1:
                return ThinkingResult(summary="Much was said.", compressed_history=history[-2:])
            case 2:
                return ThinkingResult(compressed_history=(*history, *history), summary="x" * 10_000)
            case 3:
                raise ValueError("no thought")
            case 4:
                return "nonsense"
            case _:
                return await asyncio.sleep(1)

    def fork(self) -> dict[str, Any]:
        """Return options of a fork."""
        if not self._exists:
            return {}
        return {"prompt": self.random.choice((None, "Go back.")), "restricted": self.random.random() < 0.5}

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[list[Any]]:
        """Start the MCP server, and return its toolset in a list."""
        if not self.servers:
            yield []
            return
        outputs = [self.random.choice((None, *SCHEMAS)) for _ in self.servers]
        tools = [
            {"name": f"tool{number}", "inputSchema": schema, **({} if output is None else {"outputSchema": output})}
            for number, (schema, output) in enumerate(zip(self.servers, outputs, strict=True))
        ]
        result = {"content": [], "structuredContent": self.random.choice(ARGUMENTS)}
        async with raw.serve_http(
            raw.script(*tools, result=result, version=self.random.choice((raw.OLD, raw.NEW)))
        ) as url:
            yield [mcp(url, name="mcp", timeout=1.0)]

    async def prepare(self, log: EventLog | None, name: str) -> None:
        """Execute two runs, so that predictions and memories exist."""
        if log is None or not {"recall", "lessons", "predict"} & {*self.names}:
            return
        for _ in range(2):
            await Agent(ScriptedModel(call("look"), "There."), name=name, tools=[look], log=log).run(PROMPT)
