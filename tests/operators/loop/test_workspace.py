"""Workspaces in requests, which never enter the history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import (
    Agent,
    Message,
    ModelRequest,
    Scratchpad,
    Signal,
    SlidingWindowCompressor,
    op,
)
from rxloop.context import CompositeWorkspace, TextWorkspace, TokenEstimator
from rxloop.pipeline.interfaces import Rendered, WorkspacePart
from rxloop.testing import ScriptedModel
from support.long_runs import UNLIMITED, collect_run, look, look_calls, request_messages

BIG = "The shelf plan of hall seven. " * 900


@pytest.mark.parametrize("phase", [None, op.compress(SlidingWindowCompressor(12_000))])
async def test_workspace_is_in_each_request_once_and_never_in_the_history(phase: Any) -> None:
    # T89, T90, T91
    pad = Scratchpad(title="Notes")
    model = ScriptedModel(*look_calls(9), "Done.")

    @op.on(ModelRequest)
    async def write(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        pad["count"] = f"<<{request.iteration}>>"
        yield request

    workspace = op.workspace(CompositeWorkspace(TextWorkspace(BIG, title="Plan"), pad))
    operators = [write, workspace, *([phase] if phase is not None else [])]
    agent = Agent(model, tools=[look], limits=UNLIMITED, loop=op.standard(before_model=operators))
    result = await agent.run("Find the crate.")
    tokens = TokenEstimator().count([Message.system(BIG)])
    assert tokens > 5_000
    assert len(model.requests) == 10
    for number, request in enumerate(model.requests, start=1):
        assert [message.text.count("hall seven") for message in request_messages(request)].count(900) == 1
        assert "hall seven" in request.system[-1].text
        assert f"<<{number}>>" in request.tail[-1].text
        assert f"<<{number - 1}>>" not in "".join(message.text for message in request_messages(request))
    for message in result.messages:
        assert "hall seven" not in message.text
        assert "<<" not in message.text


async def test_workspace_may_render_a_string_or_be_asynchronous() -> None:
    class Clock:
        def render(self) -> Rendered:
            return "It is noon."

    class Slow:
        async def render(self) -> Rendered:
            return [WorkspacePart("Rules.", "House", "static"), WorkspacePart("  ")]

    model = ScriptedModel("Done.")
    await collect_run(model, op.workspace(Clock()), op.workspace(Slow()), instructions="Be brief.")
    assert [message.text for message in request_messages(model.requests[0])] == [
        "Be brief.",
        "## House\nRules.",
        "Find the crate.",
        "[Workspace, as it is now]\nIt is noon.",
    ]


async def test_empty_workspace_leaves_the_request_unchanged() -> None:
    model = ScriptedModel("Done.")
    await collect_run(model, op.workspace(CompositeWorkspace(TextWorkspace(), Scratchpad())))
    assert [message.text for message in request_messages(model.requests[0])] == ["Find the crate."]
