"""Recorded agent loops, repeated by an agent with the same requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest

from rxloop import Agent, Limits, Message, SqliteEventLog, op, replay
from rxloop.errors import LimitReached, RunError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.messages import ImagePart, Part, TextPart, ToolCall
from rxloop.run.result import Result
from rxloop.testing import ScriptedModel
from support.graphs import rebuild_matches
from support.timelines import collect_values
from support.vendors.recordings import (
    Vendor,
    choice,
    loops,
    needs_recordings,
    oracle,
    outline,
    recording,
    replay_server,
)

pytestmark = needs_recordings
LOOPS = loops()


@dataclass
class RecordedTool:
    """Tool that returns its recorded results."""

    definition: ToolDefinition
    results: list[dict[str, Any]]
    """Remaining recorded results, shared by all tools."""
    timeout: float | None = None
    idempotent: bool = False
    approve: bool = False

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        assert ctx.call is not None
        mine = [each for each in self.results if each["name"] == ctx.call.name]
        found = next((each for each in mine if orjson.loads(each["arguments"] or "{}") == arguments), None)
        if found is None:
            # The recording ends here.
            assert not mine
            return "not recorded"
        self.results.remove(found)
        return found["result"]


@dataclass
class Outcome:
    """Result of a loop."""

    result: Result[Any]
    error: Exception | None
    requests: list[Any]
    problems: list[str]
    left: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def find_tools(loop: dict[str, Any], results: list[dict[str, Any]]) -> list[RecordedTool]:
    """List initial tools and tools offered later."""
    offered = {each["function"]["name"]: each["function"] for each in loop["tools"]}
    functions = offered | {each["name"]: {} for each in results if each["name"] not in offered}
    return [
        RecordedTool(
            ToolDefinition(name, function.get("description", ""), function.get("parameters") or {"type": "object"}),
            results,
        )
        for name, function in functions.items()
    ]


def normalise_message(plain: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall.parse(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in plain.get("tool_calls") or ()
    )
    return Message(
        role="system" if plain["role"] == "developer" else plain["role"],
        content=normalise_content(plain.get("content")),
        tool_calls=calls,
        tool_call_id=plain.get("tool_call_id"),
    )


def normalise_content(plain: Any) -> str | list[Part]:
    if not isinstance(plain, list):
        return plain or ""
    return [
        TextPart(text=part["text"]) if part["type"] == "text" else ImagePart(url=part["image_url"]["url"])
        for part in plain
    ]


async def repeat_loop(
    vendor: Vendor, name: str, messages: Sequence[Message], results: list[dict[str, Any]], first: int
) -> Outcome:
    """Run an agent against the recording, from exchange number `first`."""
    conversation, loop = recording(name), LOOPS[name]["loops"][0]
    left = [dict(each) for each in results]
    vendor.replay_conversation(conversation, first)
    folder = TemporaryDirectory()
    log = SqliteEventLog(f"{folder.name}/runs.db")
    agent = Agent(
        vendor.provider(conversation["exchanges"][0]),
        tools=find_tools(loop, left),
        thoughts=False,
        limits=Limits(iterations=len(loop["exchanges"]) - first, tool_failures=None),
        log=log,
    )
    run = agent.run(list(messages))
    events = [event async for event in run.pipe(op.grammar())]
    try:
        result, error = await run, None
    except (RunError, LimitReached) as failure:
        result, error = failure.result, failure
    again = replay(log, result.task_id)
    # L1, L3, L4, L5: the stream follows the grammar, both live and when it is read back.
    assert [event async for event in again.pipe(op.grammar())] == [event for event in events if event.durable]
    recorded = await again.result()
    # Graph changes add up to the graph, and live statistics match the logged ones.
    assert rebuild_matches(events, result.thoughts)
    live, logged = (collect_values(op.stats(), each)[-1] for each in (events, await log.read(result.task_id)))
    assert (logged.seconds, logged.tool_seconds, logged.usage) == (live.seconds, live.tool_seconds, result.usage)
    await log.aclose()
    folder.cleanup()
    # A recording of the run is a model with the same answers.
    rest = [dict(each) for each in results]
    model = ScriptedModel.from_events(events)
    once_more = Agent(model, tools=find_tools(loop, rest), thoughts=False, limits=agent.limits)
    await once_more.run(list(messages)).pipe(op.compare(events), op.grammar())
    assert (len(model.requests), rest) == (len(vendor.replay.requests), left)
    # L144: folding the log restores the state.
    assert (recorded.messages, recorded.usage, recorded.state) == (result.messages, result.usage, result.state)
    return Outcome(result, error, [each["body"] for each in vendor.replay.requests], vendor.replay.problems, left)


def find_last_answer(result: Result[Any]) -> tuple[str, list[tuple[str, str]]]:
    last = next(each for each in reversed(result.messages) if each.role == "assistant")
    return last.text, [(call.name, call.raw or "") for call in last.tool_calls]


def read_recorded_answer(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the last recorded message of the model, parsed by the SDK."""
    last = choice(oracle(name)[LOOPS[name]["loops"][0]["exchanges"][-1]])
    return last["text"] or "", [(called, arguments or "") for _, called, arguments in last["tool_calls"]]


def recorded_requests(name: str) -> list[Any]:
    """Return the recorded requests without messages that the recording client added.

    One recording has an additional empty message, and another an additional call with its result.
    """
    made = {called for each in oracle(name) for _, called, _ in choice(each)["tool_calls"]}
    requests: list[Any] = []
    for exchange in recording(name)["exchanges"]:
        messages: list[Any] = []
        invented: set[str] = set()
        for each in exchange["request"]["body"]["messages"]:
            calls = {call["id"]: call["function"]["name"] for call in each.get("tool_calls") or ()}
            if each["role"] == "assistant" and not made.issuperset(calls.values()):
                invented |= calls.keys()
            elif each.get("tool_call_id") not in invented and (
                each["role"] != "assistant" or each.get("content") or calls
            ):
                messages.append(each)
        requests.append({"messages": messages})
    return requests


def find_results(name: str) -> list[dict[str, Any]]:
    made = {called for each in oracle(name) for _, called, _ in choice(each)["tool_calls"]}
    return [each for each in LOOPS[name]["loops"][0]["tool_results"] if each["name"] in made]


def fails_midway(name: str) -> bool:
    """Return True if the vendor reports an error in the middle of the first answer."""
    return bool(oracle(name)[0].get("error_mid_stream"))


@pytest.mark.parametrize("who", sorted({name.partition("-chat-")[0] for name in LOOPS}) or ["nobody"])
async def test_recorded_loop_repeats_its_requests_and_result(who: str) -> None:
    deviating: list[str] = []
    async with replay_server() as vendor:
        for name in sorted(LOOPS):
            if name.partition("-chat-")[0] != who or fails_midway(name):
                continue
            assert len(LOOPS[name]["loops"]) == 1
            loop = LOOPS[name]["loops"][0]
            initial = [normalise_message(each) for each in loop["initial_messages"]]
            found = await repeat_loop(vendor, name, initial, find_results(name), 0)
            wanted, requests = read_recorded_answer(name), recorded_requests(name)
            if [outline(each) for each in requests] == [
                outline(each["request"]["body"]) for each in recording(name)["exchanges"]
            ]:
                assert (name, found.problems) == (name, [])
            else:
                deviating.append(name)
            assert (name, list(map(outline, found.requests))) == (name, list(map(outline, requests)))
            assert (name, found.left) == (name, [])
            assert (name, find_last_answer(found.result)) == (name, wanted)
            if wanted[1]:
                # The client used the final call as the answer. Here it is a call.
                assert isinstance(found.error, LimitReached)
            else:
                assert (name, found.error, found.result.output) == (name, None, wanted[0])
    assert len(deviating) <= 1


async def test_malformed_recorded_call_is_requested_again_with_the_reason() -> None:
    # P10
    names = [name for name in LOOPS if fails_midway(name)]
    assert names
    async with replay_server() as vendor:
        for name in names:
            loop = LOOPS[name]["loops"][0]
            initial = [normalise_message(each) for each in loop["initial_messages"]]
            found = await repeat_loop(vendor, name, initial, loop["tool_results"], 0)
            assert (found.error, find_last_answer(found.result)) == (None, read_recorded_answer(name))
            note = found.requests[1]["messages"][-1]
            assert note["role"] == "user"
            assert "did not match schema" in note["content"]
            # The recorded client executed the unreadable call. Its result is not needed here.
            assert found.left == loop["tool_results"][:1]
            # Continue with the history of the client.
            then = [normalise_message(each) for each in recording(name)["exchanges"][1]["request"]["body"]["messages"]]
            found = await repeat_loop(vendor, name, then, loop["tool_results"][1:], 1)
            assert (found.error, found.problems, found.left) == (None, [], [])
            assert find_last_answer(found.result) == read_recorded_answer(name)


def test_all_recorded_loops_are_found() -> None:
    assert sum(len(each["loops"]) for each in LOOPS.values()) >= 53
