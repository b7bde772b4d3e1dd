"""Combined models close only models that they created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest

from rxloop import Agent
from rxloop.providers import HTTPModel, fallback, hedge, limited, routed
from support.http_server import Server, chat_model, text_reply

Made = Callable[[Any], Any]
COMBINED = pytest.mark.parametrize(
    "combined",
    [
        fallback,
        lambda model: hedge(model, model, after=9),
        lambda model: limited(model, concurrent=1),
        lambda model: fallback(limited(model, concurrent=1)),
        lambda model: routed(lambda _: model),
    ],
    ids=["fallback", "hedge", "limited", "nested", "routed"],
)


@pytest.fixture
def model_string(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    server.answer(text_reply("Hello"))
    return f"{server.base_url}#m"


@COMBINED
@pytest.mark.parametrize("of_the_run", [False, True])
async def test_agent_closes_models_created_from_strings(
    server: Server, model_string: str, combined: Made, of_the_run: bool
) -> None:
    model = combined(model_string)
    agent = Agent("ollama:x" if of_the_run else model)
    await agent.run("Hi", **({"model": model} if of_the_run else {}))
    assert server.open == 1
    await agent.aclose()
    await server.all_closed.wait()


@COMBINED
async def test_models_passed_as_objects_stay_open(server: Server, combined: Made) -> None:
    server.answer(text_reply("Hello"))
    given = chat_model(server)
    async with Agent(combined(given)) as agent:
        await agent.run("Hi")
    assert [client.is_closed for client in given._pool.clients] == [False]
    await given.aclose()


async def test_client_used_by_another_agent_stays_open(server: Server) -> None:
    model = chat_model(server)
    async with model._pool.lease() as client:
        await model.aclose_unused()
        assert not client.is_closed
    await model.aclose_unused()
    assert client.is_closed


class FailingToolset:
    """Toolset whose exit fails."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        raise OSError("it does not close")

    async def tools(self, ctx: object) -> list[Any]:
        return []


async def test_failing_toolset_does_not_keep_others_open(server: Server, model_string: str) -> None:
    agent = Agent(model_string, tools=[FailingToolset(), FailingToolset()])
    await agent.run("Hi")
    with pytest.raises(OSError, match="it does not close") as raised:
        await agent.aclose()
    assert raised.value.__notes__ == ["and then OSError: it does not close"]
    await server.all_closed.wait()
    assert isinstance(agent.model, HTTPModel)
