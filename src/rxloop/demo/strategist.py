"""How the offline model plays the strategies that run: for sums, which it works out step by step."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from rxloop.demo.conversation import Conversation, Reply
from rxloop.demo.reading import evaluate, exact, sum_in


def strategist(conversation: Conversation) -> Reply | None:
    """Answers the prompts of the strategies, when they are about a sum."""
    play = _play(conversation.question)
    asked = next((each for each in reversed(conversation.questions) if _play(each) is None), "")
    expression = sum_in(asked, None)
    if play is None or expression is None:
        return None
    try:
        evaluate(expression)
    except ArithmeticError:
        return None
    return play(conversation, _Sum(expression))


class _Sum:
    """A sum, and the steps in which it is worked out."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.steps: list[tuple[str, str]] = []
        """Each step with the numbers that are known then, and with labels for the results of the steps before."""
        self.result = exact(evaluate(expression))
        self._label(ast.parse(expression, mode="eval").body)

    @property
    def worked(self) -> list[str]:
        """The steps with their results."""
        return [f"{step} = {exact(evaluate(step))}" for step, _ in self.steps]

    @property
    def sentence(self) -> str:
        """The answer."""
        return f"{self.expression} is {self.result}."

    def _label(self, node: ast.expr) -> tuple[str, str]:
        if not isinstance(node, ast.BinOp):
            text = exact(evaluate(ast.unparse(node)))
            return text, text
        (left, first), (right, second) = self._label(node.left), self._label(node.right)
        sign = _SIGNS[type(node.op)]
        # A negative number in brackets, or a power of it would be read in another way.
        left, right = (f"({each})" if each.startswith("-") else each for each in (left, right))
        self.steps.append((f"{left} {sign} {right}", f"{first} {sign} {second}"))
        return exact(evaluate(f"{left} {sign} {right}")), f"#E{len(self.steps)}"


_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "**",
}


def _reasoning(conversation: Conversation, given: _Sum) -> Reply:
    return Reply("\n".join(f"{place}. {step}" for place, step in enumerate(given.worked, 1)))


def _principle(conversation: Conversation, given: _Sum) -> Reply:
    return Reply("It is a sum: powers come first, then multiplication and division, then addition and subtraction.")


def _sample(conversation: Conversation, given: _Sum) -> Reply:
    return Reply(f"{'; '.join(given.worked)}.\nAnswer: {given.result}")


def _in_turn(end: str, on: str) -> Callable[[Conversation, _Sum], Reply]:
    """One step a message, and after it whether there are more."""

    def play(conversation: Conversation, given: _Sum) -> Reply:
        place = min(len(conversation.answers), len(given.steps) - 1)
        return Reply(f"{given.worked[place]}\n{on if place + 1 < len(given.steps) else end}")

    return play


def _hypothesis(conversation: Conversation, given: _Sum) -> Reply:
    return Reply(f"{given.sentence}\nHolds: yes")


def _follow_up(conversation: Conversation, given: _Sum) -> Reply:
    place = len(conversation.answers)
    if place == len(given.steps):
        return Reply(f"So the final answer is: {given.result}")
    return Reply(f"Follow up: What is {given.steps[place][0]}?")


def _cycle(conversation: Conversation, given: _Sum) -> Reply:
    calculator = conversation.tool_with("expression")
    done = conversation.results(calculator.name) if calculator is not None else []
    if calculator is None or len(done) >= len(given.steps):
        return Reply(given.sentence)
    step = given.steps[len(done)][0]
    return Reply(f"I have to know {step}.", [(calculator.name, calculator.fill(expression=step))])


def _plan(conversation: Conversation, given: _Sum) -> Reply:
    tool = re.search(r"(?m)^(\w+)\(.*\bexpression\b", conversation.question)
    if tool is None:
        return Reply("No tool can do this.")
    return Reply(
        "\n".join(
            f"Plan: Work out {step}.\n#E{place} = {tool[1]}[{labelled}]"
            for place, (step, labelled) in enumerate(given.steps, 1)
        )
    )


def _solve(conversation: Conversation, given: _Sum) -> Reply:
    return Reply(f"{given.expression} is {conversation.question.rpartition('Evidence: ')[2]}.")


def _propose(conversation: Conversation, given: _Sum) -> Reply:
    place = len(_numbered(conversation.question)) if "The steps so far" in conversation.question else 0
    right = given.worked[place] if place < len(given.steps) else f"the result is {given.result}"
    return Reply(f"1. {right}\n2. guess that it is 42\n3. look it up in a table")


def _judge(conversation: Conversation, given: _Sum) -> Reply:
    right = _numbered(conversation.question)[-1] in (*given.worked, f"the result is {given.result}")
    return Reply(f"This {'is on the way' if right else 'leads nowhere'}.\nScore: {0.9 if right else 0.1}")


def _vote(conversation: Conversation, given: _Sum) -> Reply:
    return Reply("The first does what is asked.\nBest: 1")


def _answer(conversation: Conversation, given: _Sum) -> Reply:
    return Reply(given.sentence)


def _numbered(text: str) -> list[str]:
    return re.findall(r"(?m)^\d+\. (.+)$", text)


_PLAYS: dict[str, Callable[[Conversation, _Sum], Reply]] = {
    "Let's think step by step. Do not": _reasoning,
    "do not solve the problem yet": _principle,
    "End with one line: `Answer: `": _sample,
    "`Done: yes`": _in_turn("Done: yes", "Done: no"),
    "`Next: continue`": _in_turn("Next: conclude", "Next: continue"),
    "`Holds: yes`": _hypothesis,
    "`Follow up: `": _follow_up,
    "Work in cycles.": _cycle,
    "#E1 = tool_name": _plan,
    "\nEvidence: ": _solve,
    "different next steps": _propose,
    "How likely does this lead": _judge,
    "the most promising?": _vote,
    "You can call no more tools.": _answer,
    "Give the answer that they lead to": _answer,
    "Give the answer to the person who asked": _answer,
}
"""What tells the prompts of the strategies apart, and what is said to each."""


def _play(prompt: str) -> Callable[[Conversation, _Sum], Reply] | None:
    return next((play for mark, play in _PLAYS.items() if mark in prompt), None)
