"""Replies for strategy prompts and typed output."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from rxloop.demo.conversation import Conversation, Reply, as_json, as_object, plainest, text_of
from rxloop.demo.question_parser import OPERATIONS, evaluate, exact, sum_in
from rxloop.tools.output import FINAL_ANSWER


def strategist(conversation: Conversation) -> Reply | None:
    """Answer prompts of strategies about a sum."""
    play = _play(conversation.question)
    asked = next((question for question in reversed(conversation.questions) if _play(question) is None), "")
    expression = sum_in(asked, None)
    if play is None or expression is None:
        return None
    try:
        reply = play(conversation, _Sum(expression))
    except ArithmeticError:
        return None
    return reply if isinstance(reply, Reply) else Reply(reply)


class _Sum:
    """Arithmetic expression with intermediate steps.

    Raises:
        ArithmeticError: Invalid expression.
    """

    def __init__(self, expression: str) -> None:
        self.steps: list[tuple[str, str]] = []
        """Intermediate steps in numeric form and with labels for previous results."""
        self.expression = expression
        self.result = exact(evaluate(expression))
        self.sentence = f"{expression} is {self.result}."
        self._add_steps(ast.parse(expression, mode="eval").body)
        self.worked = [f"{step} = {exact(evaluate(step))}" for step, _ in self.steps]
        """Steps with their results."""

    def _add_steps(self, node: ast.expr) -> tuple[str, str]:
        """Evaluate a subexpression, adding intermediate steps, and return the result with its label."""
        if not isinstance(node, ast.BinOp):
            text = exact(evaluate(ast.unparse(node)))
            return text, text
        (left, first), (right, second) = self._add_steps(node.left), self._add_steps(node.right)
        sign, _ = OPERATIONS[type(node.op)]
        # Parentheses around a negative number, because the power of it would be parsed differently.
        left, right = (f"({number})" if number.startswith("-") else number for number in (left, right))
        self.steps.append((f"{left} {sign} {right}", f"{first} {sign} {second}"))
        return exact(evaluate(f"{left} {sign} {right}")), f"#E{len(self.steps)}"


_Play = Callable[[Conversation, _Sum], Reply | str]


def _step_by_step(end: str, on: str) -> _Play:
    """Return a scenario with one step per message. Each message tells whether more steps follow."""

    def play(conversation: Conversation, given: _Sum) -> str:
        place = min(len(conversation.answers), len(given.steps) - 1)
        return f"{given.worked[place]}\n{on if place + 1 < len(given.steps) else end}"

    return play


def _follow_up(conversation: Conversation, given: _Sum) -> str:
    place = len(conversation.answers)
    if place == len(given.steps):
        return f"So the final answer is: {given.result}"
    return f"Follow up: What is {given.steps[place][0]}?"


def _cycle(conversation: Conversation, given: _Sum) -> Reply:
    calculator = conversation.tool_with("expression")
    done = conversation.results(calculator.name) if calculator is not None else []
    if calculator is None or len(done) >= len(given.steps):
        return Reply(given.sentence)
    step = given.steps[len(done)][0]
    return Reply(f"I have to know {step}.", [(calculator.name, calculator.fill(expression=step))])


def _plan(conversation: Conversation, given: _Sum) -> str:
    tool = re.search(r"(?m)^(\w+)\(.*\bexpression\b", conversation.question)
    if tool is None:
        return "No tool can do this."
    steps = enumerate(given.steps, 1)
    return "\n".join(f"Plan: Work out {step}.\n#E{place} = {tool[1]}[{named}]" for place, (step, named) in steps)


def _propose(conversation: Conversation, given: _Sum) -> str:
    place = len(_numbered(conversation.question)) if "The steps so far" in conversation.question else 0
    right = given.worked[place] if place < len(given.steps) else f"the result is {given.result}"
    return f"1. {right}\n2. guess that it is 42\n3. look it up in a table"


def _judge(conversation: Conversation, given: _Sum) -> str:
    right = _numbered(conversation.question)[-1] in (*given.worked, f"the result is {given.result}")
    return f"This {'is on the way' if right else 'leads nowhere'}.\nScore: {0.9 if right else 0.1}"


def _solve(conversation: Conversation, given: _Sum) -> str:
    return f"{given.expression} is {conversation.question.rpartition('Evidence: ')[2]}."


def _answer(_: Conversation, given: _Sum) -> str:
    return given.sentence


def _numbered(text: str) -> list[str]:
    return re.findall(r"(?m)^\d+\. (.+)$", text)


_PRINCIPLE = "It is a sum: powers come first, then multiplication and division, then addition and subtraction."

_PLAYS: dict[str, _Play] = {
    "Let's think step by step. Do not": lambda _, given: "\n".join(
        f"{place}. {step}" for place, step in enumerate(given.worked, 1)
    ),
    "do not solve the problem yet": lambda _, given: _PRINCIPLE,
    "End with one line: `Answer: `": lambda _, given: f"{'; '.join(given.worked)}.\nAnswer: {given.result}",
    "`Done: yes`": _step_by_step("Done: yes", "Done: no"),
    "`Next: continue`": _step_by_step("Next: conclude", "Next: continue"),
    "`Holds: yes`": lambda _, given: f"{given.sentence}\nHolds: yes",
    "`Follow up: `": _follow_up,
    "Work in cycles.": _cycle,
    "#E1 = tool_name": _plan,
    "\nEvidence: ": _solve,
    "different next steps": _propose,
    "How likely does this lead": _judge,
    "the most promising?": lambda _, given: "The first does what is asked.\nBest: 1",
    "You can call no more tools.": _answer,
    "Give the answer that they lead to": _answer,
    "Give the answer to the person who asked": _answer,
}
"""Reply scenarios by prompt phrase."""


def _play(prompt: str) -> _Play | None:
    return next((play for mark, play in _PLAYS.items() if mark in prompt), None)


_CAPITALS = {
    "Norway": ("Oslo", 717_710),
    "Sweden": ("Stockholm", 984_748),
    "Denmark": ("Copenhagen", 660_842),
    "Germany": ("Berlin", 3_662_381),
    "France": ("Paris", 2_102_650),
}


def typed(conversation: Conversation, reply: Reply) -> Reply:
    """Convert a reply to the requested output type, if any.

    Country questions are answered from a small built-in table. Other strings contain the reply text, and remaining
    values are minimal.
    """
    schema = _schema(conversation)
    if schema is None or reply.calls or as_json(reply.text) is not None:
        return reply
    value = plainest(schema, reply.text, _facts(conversation.question))
    if FINAL_ANSWER in conversation.tools:
        return Reply(calls=[(FINAL_ANSWER, value)], reasoning=reply.reasoning)
    # Include spaces, because streaming splits text at word boundaries.
    return Reply(json.dumps(value, ensure_ascii=False), reasoning=reply.reasoning)


def _schema(conversation: Conversation) -> dict[str, Any] | None:
    """Find the answer schema in the final answer tool, response format or system prompt."""
    if FINAL_ANSWER in conversation.tools:
        return conversation.tools[FINAL_ANSWER].parameters
    if conversation.response_format.get("type") == "json_schema":
        return conversation.response_format["json_schema"]["schema"]
    for message in conversation.messages:
        found = re.search(r"JSON Schema:\s*(\{.*\})", text_of(message)) if message.get("role") == "system" else None
        if found is not None:
            return as_object(found.group(1)) or None
    return None


def _facts(question: str) -> dict[str, Any]:
    for country, (city, population) in _CAPITALS.items():
        if country in question or city in question:
            return {"name": city, "city": city, "capital": city, "country": country, "population": population}
    return {}
