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


def asked(approve: Any, **arguments: Any) -> str:
    return approval_question(approve, ToolCall(id="1", name="refund", arguments=arguments))


def test_the_usual_question_reads_as_a_sentence_that_no_value_can_imitate() -> None:
    assert asked(True) == "Call refund?"
    assert asked(True, order="A1", amount=40) == 'Call refund with order: "A1", amount: 40?'
    assert asked(True, order='A1", amount: 1') == 'Call refund with order: "A1\\", amount: 1"?'
    assert len(asked(True, order="x" * 100_000)) < 600


def test_a_question_of_ones_own_has_the_arguments_in_it() -> None:
    assert asked("Refund {amount:.2f} for {order}?", order="A1", amount=40) == "Refund 40.00 for A1?"
    assert asked("Refund {{all}} of {order}?", order=["a", 1]) == 'Refund {all} of ["a", 1]?'


@pytest.mark.parametrize("arguments", [{}, {"amount": "much"}, {"amount": None}])
def test_where_it_cannot_be_filled_in_the_usual_question_is_put(arguments: dict[str, Any]) -> None:
    assert asked("Refund {amount:.2f}?", **arguments).startswith("Call refund")


BAD = ["", " ", "Refund {price}?", "Refund {}?", "Refund {0}?", "Refund {amount.real}?", "{order[0]}?", "{", 5, None]


@pytest.mark.parametrize("wrong", BAD)
def test_a_question_that_cannot_be_put_is_refused_when_the_tool_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="'refund': approve="):
        tool(approve=wrong)(refund)


async def test_the_question_is_what_a_person_gets() -> None:
    prompts: list[str] = []

    def answer(question: Any) -> bool:
        prompts.append(question.prompt)
        return False

    made = tool(approve="Refund {amount} for {order}?")(refund)
    model = ScriptedModel(call("refund", order="A1", amount=40), "Done.")
    await Agent(model, tools=[made]).run("Go.", on_input=answer)
    assert prompts == ["Refund 40 for A1?"]
    assert model.requests[1].messages[-1].text == "The call of refund was not approved."
