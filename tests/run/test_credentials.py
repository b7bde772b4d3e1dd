"""Credentials are requested from the user, passed to the tool and never stored."""

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
from support.bank import log_after_crash
from support.runs import collect, copy_first_events, outcome

TOKEN = "PLANTED-token-77"
URL = "https://github.com/login/device"


class Hub:
    """Service that requires a token and records received tokens."""

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
            """Publish with an encrypted key."""
            self.tokens.append(await ctx.require_auth("pypi", public_key="KEY"))
            return "published"

        @tool
        async def pay(ctx: RunContext[Any]) -> str:
            """Pay after confirmation."""
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


async def test_run_pauses_when_a_tool_requires_a_credential(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, call("list_issues"), "Three.")
    run = agent.run("Which issues?")
    events = await collect(run.pipe(op.grammar()))
    result = await run

    assert result.state == "auth-required"
    assert result.reason == "auth"
    with pytest.raises(NotFinished, match="auth-required"):
        print(result.output)
    (question,) = result.pending
    assert (question.input_kind, question.provider, question.url) == ("credential", "github", URL)
    assert question.prompt == "Sign in to github."
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert final.state == "auth-required"
    assert [item.call for item in final.to_public().pending] == [None]  # type: ignore[attr-defined]

    resumed = agent.resume(run.task_id, inputs={question.input_id: TOKEN})
    kinds = [event.kind for event in await collect(resumed.pipe(op.grammar()))]

    assert (await resumed).output == "Three."
    assert hub.tokens == [TOKEN]
    assert kinds.index("tool-start") < kinds.index("input-received") < kinds.index("tool-complete")


async def test_public_auth_event_has_only_the_sign_in_data(hub: Hub, log: MemoryEventLog) -> None:  # L107
    run = hub.agent(log, call("publish")).run("Publish")
    required = next(event for event in await collect(run) if isinstance(event, AuthRequiredEvent))
    public = required.to_public()

    assert isinstance(public, AuthRequiredEvent)
    own_fields = set(type(public).model_fields) - set(InputReceivedEvent.model_fields)
    values = {name: getattr(public, name) for name in own_fields | {"input_id"}}
    assert values == {
        "input_id": "1.0.1",
        "provider": "pypi",
        "url": None,
        "public_key": "KEY",
        "call": None,
        "index": 0,
    }
    assert b"publish" not in required.to_json(public=True)


async def test_credential_of_callback_is_passed_to_the_tool_and_not_recorded(
    hub: Hub, log: MemoryEventLog
) -> None:  # L107
    def return_token(question: PendingInput) -> str:
        assert (question.provider, question.secret) == ("github", True)
        return TOKEN

    run = hub.agent(log, call("list_issues"), "Three.").run("Which issues?", on_input=return_token)
    events = await collect(run.pipe(op.grammar()))

    assert (await run).output == "Three."
    assert hub.tokens == [TOKEN]
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [None]


async def test_declined_sign_in_becomes_a_tool_result(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, call("list_issues"), "Then not.")
    paused = await agent.run("Which issues?")
    result = await agent.resume(paused.task_id, inputs={"1.0.1": None})

    assert results(result.messages) == ["The user declined to sign in to github."]
    assert hub.tokens == []


@pytest.mark.parametrize("inputs", [{"1.1.1": TOKEN}, {"github": TOKEN}])
async def test_resume_rejects_credential_for_unknown_input_id(
    hub: Hub, log: MemoryEventLog, inputs: dict[str, Any]
) -> None:  # L102, L107
    agent = hub.agent(log, call("list_issues"), "Three.")
    paused = await agent.run("Which issues?")
    with pytest.raises(InvalidInput, match=r"waiting for 1\.0\.1") as raised:
        await agent.resume(paused.task_id, inputs=inputs)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": TOKEN})).state == "completed"
    with pytest.raises(InvalidInput, match=r"not waiting for '1\.0\.1'"):
        await agent.resume(paused.task_id, inputs={"1.0.1": TOKEN})


async def test_tool_does_not_get_a_credential_of_another_provider(log: MemoryEventLog) -> None:  # L107
    provider, received = ["github"], list[Any]()

    @tool
    async def fetch(ctx: RunContext[Any]) -> str:
        """Fetches."""
        received.append(await ctx.require_auth(provider[0]))
        return "done"

    agent = Agent(ScriptedModel(call("fetch"), "Done."), tools=[fetch], log=log)
    paused = await agent.run("Fetch")
    provider[0] = "evil"
    resumed = await agent.resume(paused.task_id, inputs={"1.0.1": TOKEN})

    assert (resumed.state, received) == ("auth-required", [])
    assert [question.provider for question in resumed.pending] == ["github", "evil"]
    completed = await agent.resume(paused.task_id, inputs={"1.0.2": "other"})
    assert (completed.state, received) == ("completed", ["other"])


async def test_pending_credentials_can_be_answered_one_by_one(hub: Hub, log: MemoryEventLog) -> None:  # L98, L107
    agent = hub.agent(log, [call("list_issues"), call("pay"), call("publish")], "Done.")
    first = await agent.run("Go")
    assert (first.state, len(first.pending)) == ("input-required", 3)

    second = await agent.resume(first.task_id, inputs={"1.1.1": True})
    assert (second.state, [question.provider for question in second.pending]) == ("auth-required", ["github", "pypi"])
    third = await agent.resume(first.task_id, inputs={"1.2.1": "x"})
    assert (third.state, hub.tokens) == ("auth-required", ["x"])
    completed = await agent.resume(first.task_id, inputs={"1.0.1": TOKEN})
    assert results(completed.messages) == ["3 issues of rxloop", "paid", "published"]


async def test_credential_request_of_nested_agent_pauses_the_outer_run(
    hub: Hub, log: MemoryEventLog
) -> None:  # L107, L117
    child = hub.agent(None, call("list_issues"), "Three.", name="child")
    child_tool = child.as_tool("child", description="Knows.")
    parent = Agent(ScriptedModel(call("child", prompt="Which?"), "Three."), tools=[child_tool], log=log)
    paused = await parent.run("Which?")
    assert (paused.state, [question.provider for question in paused.pending]) == ("auth-required", ["github"])

    run = parent.resume(paused.task_id, inputs={paused.pending[0].input_id: TOKEN})
    await collect(run.pipe(op.grammar()))
    assert (await run).output == "Three."
    assert hub.tokens == [TOKEN]


# -- crashes


@pytest.mark.parametrize("kind", [ToolStartEvent, AuthRequiredEvent])
async def test_credential_is_requested_again_after_a_crash_before_it_was_passed(
    hub: Hub, log: MemoryEventLog, kind: Any
) -> None:
    paused = await hub.agent(log, call("list_issues")).run("Which?")
    log = await log_after_crash(log, paused.task_id, kind)
    resumed = await outcome(hub.agent(log, "Unknown.").resume(paused.task_id))
    if kind is ToolStartEvent:
        # Tools may have side effects before requesting credentials.
        assert "effect unknown" in results(resumed.messages)[0]
        return
    assert resumed.state == "auth-required"
    assert [question.input_id for question in resumed.pending] == ["1.0.1"]
    completed = await hub.agent(log, "Three.").resume(paused.task_id, inputs={"1.0.1": TOKEN})
    assert completed.state == "completed"
    assert hub.tokens == [TOKEN]


async def test_credential_is_requested_again_after_a_crash_before_the_tool_received_it(
    hub: Hub, log: MemoryEventLog
) -> None:  # L107
    paused = await hub.agent(log, call("list_issues")).run("Which?")
    await hub.agent(log, "Three.").resume(paused.task_id, inputs={"1.0.1": TOKEN})
    events = await log.read(paused.task_id)
    received_seq = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    resumed_seq = next(event.seq for event in events if isinstance(event, StatusUpdateEvent) and event.resumed)
    assert received_seq - resumed_seq == 2, "the attempt, the start of the call, the credential"

    for seq in range(resumed_seq, received_seq):
        truncated_log = await copy_first_events(log, paused.task_id, seq)
        resumed = await hub.agent(truncated_log).resume(paused.task_id)
        assert resumed.state == "auth-required"
        assert [question.input_id for question in resumed.pending] == ["1.0.1"]


async def test_call_has_unknown_effect_after_a_crash_after_the_tool_received_a_credential(
    hub: Hub, log: MemoryEventLog
) -> None:  # L89
    paused = await hub.agent(log, call("list_issues")).run("Which?")
    await hub.agent(log, "Three.").resume(paused.task_id, inputs={"1.0.1": TOKEN})
    log = await log_after_crash(log, paused.task_id, InputReceivedEvent)

    result = await hub.agent(log, "Unknown.").resume(paused.task_id)
    assert "effect unknown" in results(result.messages)[0]
    assert hub.tokens == [TOKEN]


async def test_idempotent_tool_requests_the_credential_with_a_new_id_after_a_crash(
    log: MemoryEventLog,
) -> None:  # L99, L107
    received: list[Any] = []

    @tool(idempotent=True)
    async def look(ctx: RunContext[Any]) -> str:
        """Looks."""
        received.append(await ctx.require_auth("github"))
        return "seen"

    def agent(log: Any, *turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(*turns), tools=[look], log=log)

    paused = await agent(log, call("look")).run("Look")
    await agent(log, "Seen.").resume(paused.task_id, inputs={"1.0.1": TOKEN})
    log = await log_after_crash(log, paused.task_id, InputReceivedEvent)

    resumed = await agent(log).resume(paused.task_id)
    assert [question.input_id for question in resumed.pending] == ["1.0.2"]
    with pytest.raises(InvalidInput):
        await agent(log).resume(paused.task_id, inputs={"1.0.1": TOKEN})
    run = agent(log, "Seen.").resume(paused.task_id, inputs={"1.0.2": "new"})
    await collect(run.pipe(op.grammar()))
    assert (await run).output == "Seen."
    assert received == [TOKEN, "new"]
    assert len(await collect(follow(log, run.task_id).pipe(op.grammar()))) == len(await log.read(run.task_id))


# -- commands and runtimes


async def test_answer_command_rejects_a_plaintext_credential(hub: Hub, log: MemoryEventLog) -> None:  # L107
    agent = hub.agent(log, [call("list_issues"), call("publish")], "Done.")
    paused = await agent.run("Go")
    with pytest.raises(InvalidInput, match="which must not be logged") as raised:
        await agent.get_run(paused.task_id).answer({"1.0.1": TOKEN, "1.1.1": "ciphertext"})
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    assert list(await log.read_commands(paused.task_id)) == []

    with pytest.raises(InvalidInput, match="must be ciphertext") as raised:
        await agent.get_run(paused.task_id).answer({"1.1.1": {"token": TOKEN}})
    assert TOKEN not in str(raised.value)
    await agent.get_run(paused.task_id).answer({"1.1.1": b"\x01\x02", "1.0.1": None})
    assert (await agent.get_run(paused.task_id).execute()).state == "completed"
    assert hub.tokens == ["AQI="]
    inputs_received = [event for event in await log.read(paused.task_id) if isinstance(event, InputReceivedEvent)]
    assert [event.value for event in inputs_received] == [None, None]


async def test_runtime_resumes_a_run_with_a_credential(hub: Hub, log: MemoryEventLog) -> None:  # L107
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
        with pytest.raises(InvalidInput, match="waiting for nothing"):
            await runtime.answer(record.task_id, {"1.0.1": TOKEN})


# -- validation of requests


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"provider": ""}, "provider must be .*, got ''"),
        ({"provider": 5}, "provider must be .*, got 5"),
        ({"provider": "x", "url": "javascript:alert(1)"}, "start with https://"),
        ({"provider": "x", "url": f"{URL}\r\nhttps://evil.example"}, "url is not a page that a person can open"),
        ({"provider": "x", "url": f"{URL}\x1b[2J"}, "printable ASCII"),
        ({"provider": "x", "url": f"{URL}\u202e"}, "printable ASCII"),
        ({"provider": "x", "url": "https://github.com@evil.example/"}, "user name"),
        ({"provider": "x", "url": "https://"}, "host name"),
        ({"provider": "x", "url": f"{URL}?{'x' * 8000}"}, "at most 8,000 characters"),
        ({"provider": "x", "public_key": b"key"}, "public_key must be .*, got b'key'"),
    ],
)
async def test_require_auth_rejects_invalid_argument(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await RunContext().require_auth(**fields)


async def test_require_auth_accepts_a_long_sign_in_page() -> None:
    with pytest.raises(RxloopError) as raised:
        await RunContext().require_auth("github", url=f"{URL}?state={'x' * 5000}")
    assert not isinstance(raised.value, ConfigurationError)


async def test_require_auth_without_await_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def forgets(ctx: RunContext[Any]) -> str:
        """Forgets."""
        ctx.require_auth("github")  # pyright: ignore[reportUnusedCoroutine]
        return "done"

    result = await Agent(ScriptedModel(call("forgets"), "Sorry."), tools=[forgets]).run("Go")
    assert "(`ctx.require_auth` without `await`)" in results(result.messages)[0]
    assert "use `await ctx.require_auth(...)`" in caplog.text
    with pytest.raises(RxloopError, match=r"use `await ctx.require_auth\(\.\.\.\)`"):
        bool(RunContext().require_auth("github"))


async def test_guard_can_require_a_credential(log: MemoryEventLog) -> None:
    from collections.abc import AsyncIterator

    from rxloop import Signal, ToolRequest

    @op.on(ToolRequest)
    async def require_vault_token(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request if await ctx.require_auth("vault") == TOKEN else request.refuse("No.")

    @tool
    async def look() -> str:
        """Looks."""
        return "blue"

    loop = op.standard(before_tools=[require_vault_token])
    agent = Agent(ScriptedModel(call("look"), "Blue."), tools=[look], log=log, loop=loop)
    paused = await agent.run("Look")
    assert paused.state == "auth-required"
    result = await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: TOKEN})
    assert results(result.messages) == ["blue"]


# -- leaks


async def test_credentials_and_deps_appear_in_no_event_log_or_error(
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
        """Fail with a credential in a local variable."""
        token = await ctx.require_auth("vault")
        assert (token, ctx.deps.key) == (TOKEN, "PLANTED-deps")
        raise LookupError("nothing there")

    path = tmp_path / "runs.db"
    outputs: list[Any] = []
    errors: list[BaseException] = []
    options: dict[str, Any] = {"tools": [*hub.tools, fails], "deps_type": Deps}
    async with hub.agent(
        SqliteEventLog(path, keep_deltas=True), [call("fails"), call("list_issues")], "Done.", **options
    ) as agent:
        log: Any = agent.log
        run = agent.run("Go", deps=Deps())
        outputs += [await collect(run), await run, run]
        inputs: dict[str, Any] = {"1.0.1": TOKEN}
        for invalid_inputs in ({"1.7.1": TOKEN}, {"1.0.1": TOKEN, "nobody": TOKEN}):
            with pytest.raises(InvalidInput) as raised:
                await agent.resume(run.task_id, inputs=invalid_inputs, deps=Deps())
            errors.append(raised.value)
        with pytest.raises(InvalidInput) as raised:
            await agent.get_run(run.task_id).answer(inputs)
        errors.append(raised.value)
        resumed = agent.resume(run.task_id, inputs=inputs, deps=Deps())
        outputs += [repr(resumed._attempt.spec), await collect(resumed), await resumed, resumed]
        assert resumed._attempt.credentials == {}
        last = agent.resume(run.task_id, inputs={"1.1.1": TOKEN}, deps=Deps())
        outputs += [await collect(last), await last, last]
        assert hub.tokens == [TOKEN]
        recorded = await log.read(run.task_id)
        outputs += [recorded, b"".join(event.to_json() for event in recorded), await collect(replay(log, run.task_id))]
        outputs += [
            b"".join([frame async for frame in follow(log, run.task_id).sse()]),
            await log.read_commands(run.task_id),
        ]
        files = b"".join(file.read_bytes() for file in tmp_path.iterdir())

    texts = (
        [repr(item) for item in outputs]
        + [str(item) for item in outputs]
        + [record.getMessage() for record in caplog.records]
    )
    texts += ["".join(traceback.format_exception(error)) for error in errors]
    texts += [caplog.text, files.decode("latin-1")]
    assert "auth-required" in texts[-1]
    assert len(list(tmp_path.iterdir())) >= 1
    for text in texts:
        assert "PLANTED" not in text, text[max(0, text.index("PLANTED") - 300) : text.index("PLANTED") + 40]
    assert any(isinstance(event, InputRequiredEvent | AuthRequiredEvent) for event in recorded)
