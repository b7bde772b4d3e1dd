"""Credentials: asked of the person alone, used by the tool, and kept by nobody."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    AuthRequiredEvent,
    ConfigurationError,
    InputReceivedEvent,
    MemoryEventLog,
    NotFinished,
    PendingInput,
    RunContext,
    Runtime,
    SqliteEventLog,
    StatusUpdateEvent,
    ToolStartEvent,
    follow,
    op,
    replay,
    tool,
)
from rxloop.errors import InvalidInput, RxloopError
from rxloop.protocol.events import InputRequiredEvent
from rxloop.testing import ScriptedModel, call
from support.bank import crashed
from support.runs import collect, first_events, outcome

TOKEN = "PLANTED-token-77"
URL = "https://github.com/login/device"


class Hub:
    """A service that wants a token, and what it was called with."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []

        @tool
        async def list_issues(ctx: RunContext[Any], repo: str = "rxloop") -> str:
            """Lists issues."""
            token = await ctx.require_auth("github", url=URL)
            self.tokens.append(token)
            return f"3 issues of {repo}"

        @tool
        async def publish(ctx: RunContext[Any]) -> str:
            """Publishes, with a key that is encrypted on the way."""
            self.tokens.append(await ctx.require_auth("pypi", public_key="KEY"))
            return "published"

        @tool
        async def pay(ctx: RunContext[Any]) -> str:
            """Pays, if that is right."""
            return "paid" if await ctx.ask("Pay?") else "not paid"

        self.tools = [list_issues, publish, pay]

    def agent(self, log: Any, *turns: Any, **options: Any) -> Agent[Any, str]:
        options = {"tools": self.tools, **options}
        return Agent(ScriptedModel(*turns), log=log, **options)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def results(messages: Any) -> list[str]:
    return [message.text for message in messages if message.role == "tool"]


async def test_a_tool_that_needs_a_credential_pauses_the_run(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, call("list_issues"), "Three.")
    run = agent.run("Which issues?")
    events = await collect(run.pipe(op.grammar()))
    result = await run

    assert (result.state, result.reason) == ("auth-required", "auth")
    with pytest.raises(NotFinished, match="auth-required"):
        print(result.output)
    (question,) = result.pending
    assert (question.input_kind, question.provider, question.url) == ("credential", "github", URL)
    assert question.prompt == "Sign in to github."
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, [each.call for each in final.to_public().pending]) == ("auth-required", [None])  # type: ignore[attr-defined]

    again = agent.resume(run.task_id, inputs={question.input_id: TOKEN})
    kinds = [event.kind for event in await collect(again.pipe(op.grammar()))]

    assert ((await again).output, hub.tokens) == ("Three.", [TOKEN])
    assert kinds.index("tool-start") < kinds.index("input-received") < kinds.index("tool-complete")


async def test_clients_learn_where_to_sign_in_and_nothing_else(hub: Hub, log: MemoryEventLog) -> None:  # L107
    run = hub.agent(log, call("publish")).run("Publish")
    asked = next(event for event in await collect(run) if isinstance(event, AuthRequiredEvent))
    shown = asked.to_public()

    assert isinstance(shown, AuthRequiredEvent)
    own = set(type(shown).model_fields) - set(InputReceivedEvent.model_fields)
    told = {name: getattr(shown, name) for name in own | {"input_id"}}
    assert told == {
        "input_id": "1.0.1",
        "provider": "pypi",
        "url": None,
        "public_key": "KEY",
        "call": None,
        "index": 0,
    }
    assert b"publish" not in asked.to_json(public=True)


async def test_it_comes_at_once_from_a_callback(hub: Hub, log: MemoryEventLog) -> None:  # L107
    def sign_in(question: PendingInput) -> str:
        assert (question.provider, question.secret) == ("github", True)
        return TOKEN

    run = hub.agent(log, call("list_issues"), "Three.").run("Which issues?", on_input=sign_in)
    events = await collect(run.pipe(op.grammar()))

    assert ((await run).output, hub.tokens) == ("Three.", [TOKEN])
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [None]


async def test_a_person_may_decline(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, call("list_issues"), "Then not.")
    waiting = await agent.run("Which issues?")
    result = await agent.resume(waiting.task_id, inputs={"1.0.1": None})

    assert (results(result.messages), hub.tokens) == (["The user declined to sign in to github."], [])


@pytest.mark.parametrize("inputs", [{"1.1.1": TOKEN}, {"github": TOKEN}])
async def test_a_credential_for_something_else_is_refused(
    hub: Hub, log: MemoryEventLog, inputs: dict[str, Any]
) -> None:  # L102, L107
    agent = hub.agent(log, call("list_issues"), "Three.")
    waiting = await agent.run("Which issues?")
    with pytest.raises(InvalidInput, match=r"waits for 1\.0\.1") as raised:
        await agent.resume(waiting.task_id, inputs=inputs)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    assert (await agent.resume(waiting.task_id, inputs={"1.0.1": TOKEN})).state == "completed"
    with pytest.raises(InvalidInput, match=r"does not wait for '1\.0\.1'"):
        await agent.resume(waiting.task_id, inputs={"1.0.1": TOKEN})


async def test_a_tool_that_asks_for_another_provider_does_not_get_it(log: MemoryEventLog) -> None:  # L107
    wanted, got = ["github"], list[Any]()

    @tool
    async def fetch(ctx: RunContext[Any]) -> str:
        """Fetches."""
        got.append(await ctx.require_auth(wanted[0]))
        return "done"

    agent = Agent(ScriptedModel(call("fetch"), "Done."), tools=[fetch], log=log)
    waiting = await agent.run("Fetch")
    wanted[0] = "evil"
    again = await agent.resume(waiting.task_id, inputs={"1.0.1": TOKEN})

    assert (again.state, got) == ("auth-required", [])
    assert [question.provider for question in again.pending] == ["github", "evil"]
    done = await agent.resume(waiting.task_id, inputs={"1.0.2": "other"})
    assert (done.state, got) == ("completed", ["other"])


async def test_two_that_wait_are_answered_one_by_one(hub: Hub, log: MemoryEventLog) -> None:  # L98, L107
    agent = hub.agent(log, [call("list_issues"), call("pay"), call("publish")], "Done.")
    first = await agent.run("Go")
    assert (first.state, len(first.pending)) == ("input-required", 3)

    second = await agent.resume(first.task_id, inputs={"1.1.1": True})
    assert (second.state, [question.provider for question in second.pending]) == ("auth-required", ["github", "pypi"])
    third = await agent.resume(first.task_id, inputs={"1.2.1": "x"})
    assert (third.state, hub.tokens) == ("auth-required", ["x"])
    done = await agent.resume(first.task_id, inputs={"1.0.1": TOKEN})
    assert results(done.messages) == ["3 issues of rxloop", "paid", "published"]


async def test_a_nested_agent_may_need_one(hub: Hub, log: MemoryEventLog) -> None:  # L107, L117
    child = hub.agent(None, call("list_issues"), "Three.", name="child")
    asks = child.as_tool("child", description="Knows.")
    parent = Agent(ScriptedModel(call("child", prompt="Which?"), "Three."), tools=[asks], log=log)
    waiting = await parent.run("Which?")
    assert (waiting.state, [question.provider for question in waiting.pending]) == ("auth-required", ["github"])

    run = parent.resume(waiting.task_id, inputs={waiting.pending[0].input_id: TOKEN})
    await collect(run.pipe(op.grammar()))
    assert ((await run).output, hub.tokens) == ("Three.", [TOKEN])


# -- crashes


@pytest.mark.parametrize("kind", [ToolStartEvent, AuthRequiredEvent])
async def test_a_crash_before_the_credential_asks_for_it_once_more(hub: Hub, log: MemoryEventLog, kind: Any) -> None:
    waiting = await hub.agent(log, call("list_issues")).run("Which?")
    log = await crashed(log, waiting.task_id, kind)
    again = await outcome(hub.agent(log, "Unknown.").resume(waiting.task_id))
    if kind is ToolStartEvent:
        # It may have done something before it asked.
        assert "effect unknown" in results(again.messages)[0]
        return
    assert (again.state, [question.input_id for question in again.pending]) == ("auth-required", ["1.0.1"])
    done = await hub.agent(log, "Three.").resume(waiting.task_id, inputs={"1.0.1": TOKEN})
    assert (done.state, hub.tokens) == ("completed", [TOKEN])


async def test_a_crash_before_the_tool_had_it_asks_for_it_again(hub: Hub, log: MemoryEventLog) -> None:  # L107
    waiting = await hub.agent(log, call("list_issues")).run("Which?")
    await hub.agent(log, "Three.").resume(waiting.task_id, inputs={"1.0.1": TOKEN})
    events = await log.read(waiting.task_id)
    had = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    begun = next(event.seq for event in events if isinstance(event, StatusUpdateEvent) and event.resumed)
    assert had - begun == 2, "the attempt, the start of the call, the credential"

    for seq in range(begun, had):
        cut = await first_events(log, waiting.task_id, seq)
        again = await hub.agent(cut).resume(waiting.task_id)
        assert (again.state, [question.input_id for question in again.pending]) == ("auth-required", ["1.0.1"])


async def test_a_crash_after_the_tool_had_it_is_an_unknown_effect(hub: Hub, log: MemoryEventLog) -> None:  # L89
    waiting = await hub.agent(log, call("list_issues")).run("Which?")
    await hub.agent(log, "Three.").resume(waiting.task_id, inputs={"1.0.1": TOKEN})
    log = await crashed(log, waiting.task_id, InputReceivedEvent)

    result = await hub.agent(log, "Unknown.").resume(waiting.task_id)
    assert "effect unknown" in results(result.messages)[0]
    assert hub.tokens == [TOKEN]


async def test_an_idempotent_tool_asks_again_under_a_fresh_id(log: MemoryEventLog) -> None:  # L99, L107
    got: list[Any] = []

    @tool(idempotent=True)
    async def look(ctx: RunContext[Any]) -> str:
        """Looks."""
        got.append(await ctx.require_auth("github"))
        return "seen"

    def agent(log: Any, *turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(*turns), tools=[look], log=log)

    waiting = await agent(log, call("look")).run("Look")
    await agent(log, "Seen.").resume(waiting.task_id, inputs={"1.0.1": TOKEN})
    log = await crashed(log, waiting.task_id, InputReceivedEvent)

    again = await agent(log).resume(waiting.task_id)
    assert [question.input_id for question in again.pending] == ["1.0.2"]
    with pytest.raises(InvalidInput):
        await agent(log).resume(waiting.task_id, inputs={"1.0.1": TOKEN})
    run = agent(log, "Seen.").resume(waiting.task_id, inputs={"1.0.2": "new"})
    await collect(run.pipe(op.grammar()))
    assert ((await run).output, got) == ("Seen.", [TOKEN, "new"])
    assert len(await collect(follow(log, run.task_id).pipe(op.grammar()))) == len(await log.read(run.task_id))


# -- mail and runtimes


async def test_mail_does_not_take_a_credential_in_clear(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, [call("list_issues"), call("publish")], "Done.")
    waiting = await agent.run("Go")
    with pytest.raises(InvalidInput, match="which no log is to keep") as raised:
        await agent.get_run(waiting.task_id).answer({"1.0.1": TOKEN, "1.1.1": "ciphertext"})
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    assert list(await log.read_commands(waiting.task_id)) == []

    with pytest.raises(InvalidInput, match="is to be ciphertext") as raised:
        await agent.get_run(waiting.task_id).answer({"1.1.1": {"token": TOKEN}})
    assert TOKEN not in str(raised.value)
    await agent.get_run(waiting.task_id).answer({"1.1.1": b"\x01\x02", "1.0.1": None})
    assert (await agent.get_run(waiting.task_id).execute()).state == "completed"
    assert hub.tokens == ["AQI="]
    received = [event for event in await log.read(waiting.task_id) if isinstance(event, InputReceivedEvent)]
    assert [event.value for event in received] == [None, None]


async def test_a_runtime_goes_on_with_a_credential_itself(hub: Hub, log: MemoryEventLog) -> None:  # L107
    async with Runtime({"a": hub.agent(None, [call("list_issues"), call("pay")], "Done.")}, log=log) as runtime:
        record = await runtime.start("a", "Go")
        kinds: list[str] = []
        async for event in runtime.follow(record.task_id):
            kinds.append(event.kind)
            if isinstance(event, StatusUpdateEvent) and event.state == "input-required":
                await runtime.answer(record.task_id, {"1.0.1": TOKEN, "1.1.1": True})
        assert (await runtime.get_record(record.task_id)).state == "completed"
        assert hub.tokens == [TOKEN]
        assert kinds.count("tool-complete") == 2
        with pytest.raises(InvalidInput, match="waits for nothing"):
            await runtime.answer(record.task_id, {"1.0.1": TOKEN})


# -- what is asked


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"provider": ""}, "provider=''"),
        ({"provider": 5}, "provider=5"),
        ({"provider": "x", "url": "javascript:alert(1)"}, "begins with https://"),
        ({"provider": "x", "public_key": b"key"}, "public_key=b'key'"),
    ],
)
async def test_what_cannot_be_put_to_a_person_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RunContext().require_auth(**fields)


async def test_one_that_is_not_awaited_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def forgets(ctx: RunContext[Any]) -> str:
        """Forgets."""
        ctx.require_auth("github")  # pyright: ignore[reportUnusedCoroutine]
        return "done"

    result = await Agent(ScriptedModel(call("forgets"), "Sorry."), tools=[forgets]).run("Go")
    assert "(`ctx.require_auth` without `await`)" in results(result.messages)[0]
    assert "write `await ctx.require_auth(...)`" in caplog.text
    with pytest.raises(RxloopError, match=r"write `await ctx.require_auth\(\.\.\.\)`"):
        bool(RunContext().require_auth("github"))


async def test_a_guard_may_need_one(log: MemoryEventLog) -> None:
    from collections.abc import AsyncIterator

    from rxloop import Signal, ToolRequest

    @op.on(ToolRequest)
    async def signed(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request if await ctx.require_auth("vault") == TOKEN else request.refuse("No.")

    @tool
    async def look() -> str:
        """Looks."""
        return "blue"

    loop = op.standard(before_tools=[signed])
    agent = Agent(ScriptedModel(call("look"), "Blue."), tools=[look], log=log, loop=loop)
    waiting = await agent.run("Look")
    assert waiting.state == "auth-required"
    result = await agent.resume(waiting.task_id, inputs={waiting.pending[0].input_id: TOKEN})
    assert results(result.messages) == ["blue"]


# -- nowhere


async def test_a_credential_and_the_deps_are_nowhere(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # L107
    caplog.set_level(logging.DEBUG)

    class Deps:
        def __init__(self) -> None:
            self.key = "PLANTED-deps"

        def __repr__(self) -> str:
            return self.key

    @tool
    async def fails(ctx: RunContext[Any]) -> str:
        """Fails with it in its hands."""
        token = await ctx.require_auth("vault")
        assert (token, ctx.deps.key) == (TOKEN, "PLANTED-deps")
        raise LookupError("nothing there")

    path = tmp_path / "runs.db"
    seen: list[Any] = []
    errors: list[BaseException] = []
    options: dict[str, Any] = {"tools": [*hub.tools, fails], "deps_type": Deps}
    async with hub.agent(
        SqliteEventLog(path, keep_deltas=True), [call("fails"), call("list_issues")], "Done.", **options
    ) as agent:
        log: Any = agent.log
        run = agent.run("Go", deps=Deps())
        seen += [await collect(run), await run, run]
        inputs: dict[str, Any] = {"1.0.1": TOKEN}
        for wrong in ({"1.7.1": TOKEN}, {"1.0.1": TOKEN, "nobody": TOKEN}):
            with pytest.raises(InvalidInput) as raised:
                await agent.resume(run.task_id, inputs=wrong, deps=Deps())
            errors.append(raised.value)
        with pytest.raises(InvalidInput) as raised:
            await agent.get_run(run.task_id).answer(inputs)
        errors.append(raised.value)
        again = agent.resume(run.task_id, inputs=inputs, deps=Deps())
        seen += [repr(again._attempt.spec), await collect(again), await again, again]
        assert again._attempt.credentials == {}
        last = agent.resume(run.task_id, inputs={"1.1.1": TOKEN}, deps=Deps())
        seen += [await collect(last), await last, last]
        assert hub.tokens == [TOKEN]
        recorded = await log.read(run.task_id)
        seen += [recorded, b"".join(event.to_json() for event in recorded), await collect(replay(log, run.task_id))]
        seen += [
            b"".join([frame async for frame in follow(log, run.task_id).sse()]),
            await log.read_commands(run.task_id),
        ]
        files = b"".join(file.read_bytes() for file in tmp_path.iterdir())

    texts = (
        [repr(each) for each in seen]
        + [str(each) for each in seen]
        + [record.getMessage() for record in caplog.records]
    )
    texts += ["".join(traceback.format_exception(error)) for error in errors]
    texts += [caplog.text, files.decode("latin-1")]
    assert "auth-required" in texts[-1]
    assert len(list(tmp_path.iterdir())) >= 1
    for text in texts:
        assert "PLANTED" not in text, text[max(0, text.index("PLANTED") - 300) : text.index("PLANTED") + 40]
    assert any(isinstance(event, InputRequiredEvent | AuthRequiredEvent) for event in recorded)
