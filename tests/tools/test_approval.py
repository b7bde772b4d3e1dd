from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call
from rxloop.tools.approval import approval_question


def refund(order: str, amount: float = 1, note: str = "") -> str:
    """Refund."""
    return "done"


def make_question(approve: Any, **arguments: Any) -> str:
    return approval_question(approve, ToolCall(id="1", name="refund", arguments=arguments))


def test_default_question_quotes_its_arguments() -> None:
    assert make_question(True) == "Call refund?"
    assert make_question(True, order="A1", amount=40) == 'Call refund with order: "A1", amount: 40?'
    assert make_question(True, order='A1", amount: 1') == 'Call refund with order: "A1\\", amount: 1"?'
    assert len(make_question(True, order="x" * 100_000)) < 600


def test_custom_question_contains_the_arguments() -> None:
    assert make_question("Refund {amount:.2f} for {order}?", order="A1", amount=40) == "Refund 40.00 for A1?"
    assert make_question("Refund {{all}} of {order}?", order=["a", 1]) == 'Refund {all} of ["a", 1]?'


@pytest.mark.parametrize("arguments", [{}, {"amount": "much"}, {"amount": None}])
def test_default_question_is_used_when_the_template_cannot_be_filled(arguments: dict[str, Any]) -> None:
    assert make_question("Refund {amount:.2f}?", **arguments).startswith("Call refund")


BAD = ["", " ", "Refund {price}?", "Refund {}?", "Refund {0}?", "Refund {amount.real}?", "{order[0]}?", "{", 5, None]


@pytest.mark.parametrize("wrong", BAD)
def test_invalid_question_template_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="'refund': approve"):
        tool(approve=wrong)(refund)


async def test_person_gets_the_question() -> None:
    prompts: list[str] = []

    def answer(question: Any) -> bool:
        prompts.append(question.prompt)
        return False

    refund_tool = tool(approve="Refund {amount} for {order}?")(refund)
    model = ScriptedModel(call("refund", order="A1", amount=40), "Done.")
    await Agent(model, tools=[refund_tool]).run("Go.", on_input=answer)
    assert prompts == ["Refund 40 for A1?"]
    assert model.requests[1].messages[-1].text == "The call of refund was not approved."
