"""Agent with tools, related thoughts, a custom operator, two subscribers and a thought graph.

Usage: python examples/kitchen_sink.py ["Is it warmer in Oslo or in Rome?"]
`python -m rxloop demo` runs the same file.
"""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import reactivex.operators as rx

from rxloop import (
    Agent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    Result,
    RunContext,
    Signal,
    Thoughts,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolError,
    ToolRequest,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.testing import demo_model

QUESTION = "Compare the weather in Oslo and Bergen, and tell me the difference in Celsius."
INSTRUCTIONS = """\
You answer questions about the weather, for people who want to understand how you reach your answer.
Publish your thoughts with think_aloud, in the same message as your other calls. Give each thought a unique, short
thought_id, such as "plan", "oslo" or "conclusion". Set related_to to its origin: the thought_id of an earlier thought,
or the id of the tool call whose result it discusses. Start with a plan, interpret each result, and end with a
conclusion. Use calculate for all arithmetic. Then answer in one or two sentences, in Celsius."""

WEATHER = {"Oslo": (18.0, "C", "sunny"), "Bergen": (55.4, "F", "rain"), "Rome": (82.4, "F", "clear")}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.Pow: math.pow,
}


@tool
def get_weather(city: str) -> dict[str, float | str]:
    """Return the current weather in a city, for example "Oslo". Stations report Celsius or Fahrenheit."""
    if city not in WEATHER:
        raise ToolError(f"No station in {city!r}; available stations: {', '.join(WEATHER)}")
    temperature, unit, sky = WEATHER[city]
    return {"temperature": temperature, "unit": unit, "sky": sky}


@tool
def calculate(expression: str) -> float:
    """Evaluate an expression with + - * / ** and parentheses, such as "(65 - 32) * 5 / 9"."""
    try:
        return round(evaluate(ast.parse(expression[:200].strip(), mode="eval").body), 6)
    except (SyntaxError, ValueError, ArithmeticError) as error:
        raise ToolError(f"cannot evaluate {expression!r}: {error}") from error


def evaluate(node: ast.expr) -> float:
    """Evaluate an expression. Uses floats to limit the cost of powers."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](evaluate(left), evaluate(right))
        case _:
            raise ArithmeticError("only numbers, + - * / ** and parentheses are supported")


@op.on(ToolRequest)
async def refuse_long_calculations(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    """Refuse expressions that are hard to check. The model reads the reason and can split its calculation."""
    expression = str(request.call.arguments.get("expression", ""))
    yield request.refuse("Use at most 80 characters per call.") if len(expression) > 80 else request


def describe(event: Event) -> str | None:
    """Describe an event in one line. Return None for events that should not be printed."""
    match event:
        case LLMCallEvent(iteration=iteration, message_count=messages):
            return f"request {iteration}, {messages} messages"
        case ThoughtStreamEvent(thought_id=name, related_to=basis, content=content):
            return f"{name}{f' <- {basis}' if basis else ''}: {content}"
        case ToolStartEvent(call=call):
            return f"{call.id}: {call.name} {call.arguments}"
        case ToolCompleteEvent(call=call, content=content):
            return f"{call.id}: {content}"
        case _:
            return None


def make_agent() -> Agent:
    """Create the agent."""
    model, tools = demo_model(), [get_weather, calculate]
    thoughts = Thoughts(hidden=True)  # the thoughts are printed, but not the tool calls
    loop = op.standard(before_tools=[refuse_long_calculations])
    return Agent(model, instructions=INSTRUCTIONS, tools=tools, thoughts=thoughts, loop=loop)


async def ask(question: str) -> Result:
    """Run the agent and print its events."""
    async with make_agent() as agent:
        run = agent.run(question)
        # A second subscriber to the same run, with operators of reactivex.
        calls = run.pipe(op.of_type(ToolCompleteEvent), rx.map(lambda event: event.call.name), rx.to_iterable())
        calls.subscribe(lambda names: print(f"\n\nCalls: {dict(Counter(names))}"))
        print(f"{agent.model.name}: {question}\n")
        async for event in run.pipe(op.public()):
            if isinstance(event, ContentDeltaEvent):
                print(event.delta, end="", flush=True)
            elif line := describe(event):
                head = f"{event.seq:>3}  {event.kind:<14}"
                print(f"\033[36m{head}\033[0m {line}" if sys.stdout.isatty() else f"{head} {line}")
        return await run


if __name__ == "__main__":
    result = asyncio.run(ask(" ".join(sys.argv[1:]) or QUESTION))
    print(f"\nThoughts ({result.state}, {result.usage.total_tokens} tokens):\n")
    print(result.thoughts.tree() or "(none)")
    Path("chain.mmd").write_text(result.thoughts.to_mermaid(), encoding="utf-8")
    print("\nThe graph was written to chain.mmd, as a Mermaid diagram.")
