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
    StatusUpdateEvent,
    ThoughtStreamEvent,
    Thoughts,
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

Think aloud with think_aloud, beside your other calls and in the same message:
- Give each thought a short thought_id of its own, such as "plan", "oslo" or "conclusion".
- Give related_to what the thought follows from: the thought_id of an earlier thought, or the id of the tool call whose
  result it is about.
- Begin with a plan, say what you make of each result, and end with a conclusion.

Do no sums in your head: use calculate. Then answer in one or two sentences, with temperatures in Celsius."""

WEATHER = {"Oslo": (18.0, "C", "sunny"), "Bergen": (55.4, "F", "rain"), "Rome": (82.4, "F", "clear")}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}


@tool
def get_weather(city: str) -> dict[str, float | str]:
    """Current weather in a city. Some stations report Celsius, some Fahrenheit.

    Args:
        city: A city name, such as "Oslo".
    """
    if city not in WEATHER:
        raise ToolError(f"No station in {city!r}; there are stations in {', '.join(WEATHER)}.")
    temperature, unit, sky = WEATHER[city]
    return {"temperature": temperature, "unit": unit, "sky": sky}


@tool
def calculate(expression: str) -> float:
    """Work out a sum with + - * / ** and parentheses.

    Args:
        expression: Such as "(65 - 32) * 5 / 9".
    """
    try:
        return round(value(ast.parse(expression[:200].strip(), mode="eval").body), 6)
    except (SyntaxError, ValueError, ArithmeticError) as error:
        raise ToolError(f"{expression!r} cannot be worked out: {error}") from error


def value(node: ast.expr) -> float:
    """The value of a sum; numbers are floats, so that no power takes longer than another."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](value(left), value(right))
        case _:
            raise ArithmeticError("only numbers, + - * / ** and parentheses")


def show(event: Event) -> None:
    """Print one event of the stream: its number, its kind, and what it says."""
    match event:
        case LLMCallEvent(iteration=iteration, message_count=messages):
            line(event, f"request {iteration}, {messages} messages")
        case ThoughtStreamEvent(thought_id=name, related_to=basis, content=content):
            line(event, f"{name}{f' <- {basis}' if basis else ''}: {content}", colour=33)
        case ToolStartEvent(call=call):
            line(event, f"{call.name} {call.arguments}  ({call.id})", colour=36)
        case ToolCompleteEvent(call=call, success=success, content=content):
            line(event, f"{call.id}: {content}", colour=32 if success else 31)
        case ContentDeltaEvent(delta=delta):
            print(delta, end="", flush=True)
        case StatusUpdateEvent(final=True, state=state):
            line(event, state, before="\n")
        case _:
            pass


def line(event: Event, text: str, *, colour: int = 2, before: str = "") -> None:
    """Print a line; in colour on a terminal."""
    head = f"{event.seq:>3} {event.kind:<15}"
    print(before + (f"\033[{colour}m{head}\033[0m {text}" if sys.stdout.isatty() else f"{head} {text}"))


async def main(question: str) -> None:
    """Ask, show the stream while it comes, and then the chain of thoughts."""
    thoughts = Thoughts(hidden=True)  # the thoughts are for everybody, the calls that make them are not
    async with Agent(demo_model(), instructions=INSTRUCTIONS, tools=[get_weather, calculate], thoughts=thoughts) as agent:
        run = agent.run(question)
        print(f"{agent.model.name}: {question}\n")
        async for event in run.pipe(op.public()):
            show(event)
        result = await run
    print(f"\n{result.usage.input_tokens} tokens in, {result.usage.output_tokens} out. The chain of thoughts:\n")
    print(result.thoughts.tree())
    Path("chain.mmd").write_text(result.thoughts.to_mermaid(), encoding="utf-8")
    print("\nchain.mmd has it for Mermaid.")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or QUESTION))
