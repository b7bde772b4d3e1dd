"""Replies for strategy prompts and typed output."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from rxloop.demo.conversation import Conversation, Reply, extract_text, make_minimal_value, parse_json, parse_object
from rxloop.demo.question_parser import OPERATIONS, evaluate, find_expression, format_exact
from rxloop.tools.output import FINAL_ANSWER


def strategist(conversation: Conversation) -> Reply | None:
    """Answer prompts of strategies about a sum."""
    play = _find_scenario(conversation.question)
    task = next((question for question in reversed(conversation.questions) if _find_scenario(question) is None), "")
    expression = find_expression(task, None)
    if play is None or expression is None:
        return None
    try:
        reply = play(conversation, _Expression(expression))
    except ArithmeticError:
        return None
    return reply if isinstance(reply, Reply) else Reply(reply)


class _Expression:
    """Arithmetic expression with intermediate steps.

    Raises:
        ArithmeticError: Invalid expression.
    """

    def __init__(self, expression: str) -> None:
        self.steps: list[tuple[str, str]] = []
        """Intermediate steps in numeric form and with labels for previous results."""
        self.expression = expression
        self.result = format_exact(evaluate(expression))
        self.sentence = f"{expression} is {self.result}."
        self._add_steps(ast.parse(expression, mode="eval").body)
        self.solutions = [f"{step} = {format_exact(evaluate(step))}" for step, _ in self.steps]
        """Steps with their results."""

    def _add_steps(self, node: ast.expr) -> tuple[str, str]:
        """Evaluate a subexpression, adding intermediate steps, and return the result with its label."""
        if not isinstance(node, ast.BinOp):
            text = format_exact(evaluate(ast.unparse(node)))
            return text, text
        (left, first), (right, second) = self._add_steps(node.left), self._add_steps(node.right)
        sign, _ = OPERATIONS[type(node.op)]
        # Parentheses around a negative number, because the power of it would be parsed differently.
        left, right = (f"({number})" if number.startswith("-") else number for number in (left, right))
        self.steps.append((f"{left} {sign} {right}", f"{first} {sign} {second}"))
        return format_exact(evaluate(f"{left} {sign} {right}")), f"#E{len(self.steps)}"


_Scenario = Callable[[Conversation, _Expression], Reply | str]


def _make_steps(end: str, on: str) -> _Scenario:
    """Return a scenario with one step per message. Each message tells whether more steps follow."""

    def play(conversation: Conversation, problem: _Expression) -> str:
        position = min(len(conversation.answers), len(problem.steps) - 1)
        return f"{problem.solutions[position]}\n{on if position + 1 < len(problem.steps) else end}"

    return play


def _ask_next_step(conversation: Conversation, problem: _Expression) -> str:
    position = len(conversation.answers)
    if position == len(problem.steps):
        return f"So the final answer is: {problem.result}"
    return f"Follow up: What is {problem.steps[position][0]}?"


def _run_cycle(conversation: Conversation, problem: _Expression) -> Reply:
    calculator = conversation.find_tool("expression")
    done = conversation.results(calculator.name) if calculator is not None else []
    if calculator is None or len(done) >= len(problem.steps):
        return Reply(problem.sentence)
    step = problem.steps[len(done)][0]
    return Reply(f"I have to know {step}.", [(calculator.name, calculator.fill(expression=step))])


def _plan(conversation: Conversation, problem: _Expression) -> str:
    tool = re.search(r"(?m)^(\w+)\(.*\bexpression\b", conversation.question)
    if tool is None:
        return "No tool can do this."
    steps = enumerate(problem.steps, 1)
    return "\n".join(f"Plan: Work out {step}.\n#E{position} = {tool[1]}[{named}]" for position, (step, named) in steps)


def _propose(conversation: Conversation, problem: _Expression) -> str:
    position = len(_parse_numbered_list(conversation.question)) if "The steps so far" in conversation.question else 0
    right = problem.solutions[position] if position < len(problem.steps) else f"the result is {problem.result}"
    return f"1. {right}\n2. guess that it is 42\n3. look it up in a table"


def _judge(conversation: Conversation, problem: _Expression) -> str:
    right = _parse_numbered_list(conversation.question)[-1] in (*problem.solutions, f"the result is {problem.result}")
    return f"This {'is on the way' if right else 'leads nowhere'}.\nScore: {0.9 if right else 0.1}"


def _solve(conversation: Conversation, problem: _Expression) -> str:
    return f"{problem.expression} is {conversation.question.rpartition('Evidence: ')[2]}."


def _answer(_: Conversation, problem: _Expression) -> str:
    return problem.sentence


def _parse_numbered_list(text: str) -> list[str]:
    return re.findall(r"(?m)^\d+\. (.+)$", text)


_PRINCIPLE = "It is a sum: powers come first, then multiplication and division, then addition and subtraction."

_SCENARIOS: dict[str, _Scenario] = {
    "Let's think step by step. Do not": lambda _, problem: "\n".join(
        f"{position}. {step}" for position, step in enumerate(problem.solutions, 1)
    ),
    "do not solve the problem yet": lambda _, problem: _PRINCIPLE,
    "End with one line: `Answer: `": lambda _, problem: f"{'; '.join(problem.solutions)}.\nAnswer: {problem.result}",
    "`Done: yes`": _make_steps("Done: yes", "Done: no"),
    "`Next: continue`": _make_steps("Next: conclude", "Next: continue"),
    "`Holds: yes`": lambda _, problem: f"{problem.sentence}\nHolds: yes",
    "`Follow up: `": _ask_next_step,
    "Work in cycles.": _run_cycle,
    "#E1 = tool_name": _plan,
    "\nEvidence: ": _solve,
    "different next steps": _propose,
    "How likely does this lead": _judge,
    "the most promising?": lambda _, problem: "The first does what is asked.\nBest: 1",
    "You can call no more tools.": _answer,
    "Give the answer that they lead to": _answer,
    "Give the answer to the person who asked": _answer,
}
"""Reply scenarios by prompt phrase."""


def _find_scenario(prompt: str) -> _Scenario | None:
    return next((play for mark, play in _SCENARIOS.items() if mark in prompt), None)


_CAPITALS = {
    "Norway": ("Oslo", 717_710),
    "Sweden": ("Stockholm", 984_748),
    "Denmark": ("Copenhagen", 660_842),
    "Germany": ("Berlin", 3_662_381),
    "France": ("Paris", 2_102_650),
}


def to_output_type(conversation: Conversation, reply: Reply) -> Reply:
    """Convert a reply to the requested output type, if any.

    Country questions are answered from a small built-in table. Other strings contain the reply text, and remaining
    values are minimal.
    """
    schema = _find_schema(conversation)
    if schema is None or reply.calls or parse_json(reply.text) is not None:
        return reply
    value = make_minimal_value(schema, reply.text, _find_facts(conversation.question))
    if FINAL_ANSWER in conversation.tools:
        return Reply(calls=[(FINAL_ANSWER, value)], reasoning=reply.reasoning)
    # Include spaces, because streaming splits text at word boundaries.
    return Reply(json.dumps(value, ensure_ascii=False), reasoning=reply.reasoning)


def _find_schema(conversation: Conversation) -> dict[str, Any] | None:
    """Find the answer schema in the final answer tool, response format or system prompt."""
    if FINAL_ANSWER in conversation.tools:
        return conversation.tools[FINAL_ANSWER].parameters
    if conversation.response_format.get("type") == "json_schema":
        return conversation.response_format["json_schema"]["schema"]
    for message in conversation.messages:
        match = (
            re.search(r"JSON Schema:\s*(\{.*\})", extract_text(message)) if message.get("role") == "system" else None
        )
        if match is not None:
            return parse_object(match.group(1)) or None
    return None


def _find_facts(question: str) -> dict[str, Any]:
    for country, (city, population) in _CAPITALS.items():
        if country in question or city in question:
            return {"name": city, "city": city, "capital": city, "country": country, "population": population}
    return {}
