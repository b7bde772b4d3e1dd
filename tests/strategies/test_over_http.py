"""Sequential strategies over HTTP."""

from contextlib import aclosing

import pytest

from rxloop import Agent
from support.http_server import chat_model, start_server, text_reply
from support.runs import collect
from support.strategy_cases import CASES, Case, is_legal, stage_path

SEQUENTIAL = [case for case in CASES if case.name in ("linear", "chain_of_thought", "scratchpad", "step_back")]


@pytest.mark.parametrize("case", SEQUENTIAL, ids=lambda case: case.name)
async def test_each_model_call_is_one_request(case: Case) -> None:
    async with start_server() as server, aclosing(chat_model(server)) as model:
        server.answer(*(text_reply(str(text)) for text in case.turns.values()))
        run = Agent(model, strategy=case.strategy()).run("What is 2 + 2?")
        events = await collect(run)
        assert (await run).output == case.answer
        assert len(server.requests) == case.calls
    assert is_legal(stage_path(events), case.name)
