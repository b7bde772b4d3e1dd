"""One agent with everything in it: tools, thoughts that refer to each other, the stream as it comes, and the graph.

python examples/kitchen_sink.py ["Is it warmer in Oslo or in Rome?"]
"""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import sys
from collections.abc import Callable
from pathlib import Path

from rxloop import (
    Agent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    Result,
    Thoughts,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolError,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.testing import demo_model

QUESTION = "Compare the weather in Oslo and Bergen, and tell me the difference in Celsius."
INSTRUCTIONS = """\
You answer questions about the weather, for people who want to follow how you come to your answer.
Think aloud with think_aloud, beside your other calls and in the same message. Give each thought a short thought_id of
its own, such as "plan", "oslo" or "conclusion". Give related_to what it follows from: the thought_id of an earlier
thought, or the id of the tool call whose result it is about. Begin with a plan, say what you make of each result, and
end with a conclusion. Do no sums in your head: use calculate. Then answer in one or two sentences, in Celsius."""

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
    """Current weather in a city, such as "Oslo". Some stations report Celsius, some Fahrenheit."""
    if city not in WEATHER:
        raise ToolError(f"No station in {city!r}; there are stations in {', '.join(WEATHER)}.")
    temperature, unit, sky = WEATHER[city]
    return {"temperature": temperature, "unit": unit, "sky": sky}


@tool
def calculate(expression: str) -> float:
    """Work out a sum with + - * / ** and parentheses, such as "(65 - 32) * 5 / 9"."""
    try:
        return round(value(ast.parse(expression[:200].strip(), mode="eval").body), 6)
    except (SyntaxError, ValueError, ArithmeticError) as error:
        raise ToolError(f"{expression!r} cannot be worked out: {error}") from error


def value(node: ast.expr) -> float:
    """Return the value of a sum; numbers are floats, so that no power takes longer than another."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](value(left), value(right))
        case _:
            raise ArithmeticError("only numbers, + - * / ** and parentheses")


def describe(event: Event) -> str | None:
    """Describe an event on one line; return None for an event that is not shown."""
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


async def ask(question: str) -> Result:
    """Ask, and show the stream as it comes."""
    model, tools = demo_model(), [get_weather, calculate]
    thoughts = Thoughts(hidden=True)  # everybody sees the thoughts, but not the calls that make them
    async with Agent(model, instructions=INSTRUCTIONS, tools=tools, thoughts=thoughts) as agent:
        run = agent.run(question)
        print(f"{agent.model.name}: {question}\n")
        async for event in run.pipe(op.public()):
            if isinstance(event, ContentDeltaEvent):
                print(event.delta, end="", flush=True)
            elif said := describe(event):
                head = f"{event.seq:>3}  {event.kind:<14}"
                print(f"\033[36m{head}\033[0m {said}" if sys.stdout.isatty() else f"{head} {said}")
        return await run


if __name__ == "__main__":
    result = asyncio.run(ask(" ".join(sys.argv[1:]) or QUESTION))
    print(f"\n\nThe chain of thoughts ({result.state}, {result.usage.total_tokens} tokens):\n")
    print(result.thoughts.tree() or "(none)")
    Path("chain.mmd").write_text(result.thoughts.to_mermaid(), encoding="utf-8")
    print("\nchain.mmd has it as a drawing for Mermaid.")
