"""Conversion of runs to A2A tasks and updates."""

from __future__ import annotations

import time
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from reactivex import from_iterable

from rxloop import (
    Agent,
    ArtifactUpdateEvent,
    Event,
    FilePart,
    ImagePart,
    MemoryEventLog,
    ModelSettings,
    RunContext,
    Runtime,
    tool,
)
from rxloop.errors import RunError
from rxloop.protocol.events import ends_attempt
from rxloop.server.a2a.task_fold import TaskFold, Update, fold_task, updates
from rxloop.testing import ScriptedModel, call, frames, turn
from support.faulty_components import PLANTED
from support.random_runs import RandomRun, random_run


class Client:
    """Client that combines updates into a task."""

    def __init__(self) -> None:
        self.task = pb.Task()

    def apply(self, update: Update) -> None:
        match update:
            case pb.Task():
                self.task.CopyFrom(update)
            case pb.TaskStatusUpdateEvent():
                self.task.status.CopyFrom(update.status)
            case pb.TaskArtifactUpdateEvent():
                assert len(update.artifact.parts) == 1
                existing = [each for each in self.task.artifacts if each.artifact_id == update.artifact.artifact_id]
                if not existing:
                    assert not update.append
                    self.task.artifacts.append(update.artifact)
                elif update.append:
                    existing[0].parts.extend(update.artifact.parts)
                else:
                    existing[0].CopyFrom(update.artifact)

    @property
    def artifacts(self) -> dict[str, str]:
        return artifact_texts(self.task)


def artifact_texts(task: pb.Task) -> dict[str, str]:
    parts = {each.artifact_id: "".join(part.text for part in each.parts) for each in task.artifacts}
    return {name: text for name, text in parts.items() if text}


def list_updates(events: list[Event], before: list[Event] | None = None) -> list[Update]:
    collected: list[Update] = []
    from_iterable(events).pipe(updates(fold_task(before) if before else None)).subscribe(collected.append)
    return collected


async def read_live_and_logged(kind: RandomRun) -> tuple[list[Event], list[Event]]:
    """Return the live and the logged events of a run."""
    log = kind.log()
    async with Runtime({"clerk": kind.agent()}, log=log, grace=0) as runtime:
        task_id = await kind.execute(runtime)
        live = [event async for event in runtime.follow(task_id)]
        return [*live], [*await log.read(task_id)]


@settings(max_examples=40, deadline=None)
@given(kind=random_run())
async def test_client_that_reconnects_anywhere_has_the_task_of_the_log(kind: RandomRun) -> None:
    live, logged = await read_live_and_logged(kind)
    complete = fold_task(logged).task
    assert PLANTED not in MessageToJson(complete)
    for index in sorted({0, 1, 2, len(logged) // 2, len(logged) - 1}):
        before = logged[:index]
        after = before[-1] if before else None
        remaining = [each for each in live if after is None or (each.seq, each.sub) > (after.seq, 0)]
        client = Client()
        for update in list_updates(remaining, before):
            assert PLANTED not in MessageToJson(update)
            client.apply(update)
        assert client.task.status.state == complete.status.state
        assert client.artifacts == artifact_texts(complete)


async def test_chunks_of_an_artifact_are_appended_to_one_part() -> None:
    @tool
    async def write(ctx: RunContext[Any]) -> str:
        """Write files."""
        draft = await ctx.artifacts.create("a.txt", name="A file", media_type="text/plain")
        await draft.append("one ")
        await draft.append("two", last=True)
        ctx.emit(ArtifactUpdateEvent(artifact_id="data", index=0, data={"a": 1}, last=True))
        await ctx.artifacts.link("far", "https://example.com/x.pdf", name="A report")
        ctx.emit(ArtifactUpdateEvent(artifact_id="bad", index=0, data={"url": "javascript:alert(1)"}, last=True))
        raw = await ctx.artifacts.create("b.bin", media_type="application/octet-stream")
        await raw.append(b"\x00\x01", last=True)
        return "written"

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write], log=log).run("Write")
    await run
    task = fold_task(await log.read(run.task_id)).task
    artifacts = {each.artifact_id: each for each in task.artifacts}
    assert [part.text for part in artifacts["a.txt"].parts] == ["one two"]
    assert artifacts["a.txt"].name == "A file"
    assert artifacts["a.txt"].parts[0].media_type == "text/plain"
    assert dict(artifacts["data"].parts[0].data.struct_value) == {"a": 1}
    [far] = artifacts["far"].parts
    assert (far.url, far.media_type, far.filename) == ("https://example.com/x.pdf", "application/pdf", "A report")
    assert artifacts["far"].name == "A report"
    assert dict(artifacts["bad"].parts[0].data.struct_value) == {"url": "javascript:alert(1)"}
    assert artifacts["b.bin"].parts[0].raw == b"\x00\x01"
    artifact_updates = [
        each for each in list_updates([*await log.read(run.task_id)]) if isinstance(each, pb.TaskArtifactUpdateEvent)
    ]
    pieces = [each for each in artifact_updates if each.artifact.artifact_id == "a.txt"]
    assert [(each.append, each.last_chunk) for each in pieces] == [(False, False), (True, True)]


def test_artifact_of_many_chunks_is_folded_in_linear_time() -> None:
    run: dict[str, Any] = {"context_id": "c", "task_id": "t", "attempt": 1, "timestamp": 0, "sub": 0}
    pieces: list[Event] = [
        ArtifactUpdateEvent(**run, seq=index + 1, artifact_id="a", data="x" * 100, index=index, last=False)
        for index in range(10_000)
    ]
    began = time.process_time()
    task = fold_task(pieces).task
    # Appending each chunk to the previous text took more than ten seconds.
    assert time.process_time() - began < 4
    assert [len(part.text) for part in task.artifacts[0].parts] == [1_000_000]


@pytest.mark.parametrize("thoughts", [False, True])
async def test_thoughts_are_statuses_only_when_enabled(thoughts: bool) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("think_aloud", thought="First the weather.", thought_type="planning"), "Done.")
    run = Agent(model, log=log).run("Go")
    await run
    fold = TaskFold(thoughts=thoughts)
    collected = [each for event in await log.read(run.task_id) for each in fold.add(event)]
    statuses = [each.status for each in collected if isinstance(each, pb.TaskStatusUpdateEvent)]
    thought_texts = [status.message.parts[0].text for status in statuses if status.HasField("message")]
    assert thought_texts == (["First the weather."] if thoughts else [])
    assert not fold.task.status.HasField("message")


async def test_text_of_a_failed_attempt_is_removed() -> None:
    log = MemoryEventLog(keep_deltas=True)
    run = Agent(ScriptedModel(frames("-wrong-#", 0.001)), log=log).run("Go")
    with pytest.raises(RunError):
        await run
    events = [*await log.read(run.task_id, deltas=True)]
    client = Client()
    for update in list_updates(events):
        client.apply(update)
    assert client.task.status.state == pb.TASK_STATE_FAILED
    assert client.artifacts == artifact_texts(fold_task(events).task)
    assert ends_attempt(events[-1])


async def test_each_file_of_the_model_is_an_artifact() -> None:
    log = MemoryEventLog()
    chart = ImagePart(data=b"\x89PNG", media_type="image/png")
    linked = FilePart(url="https://example.org/a.pdf", filename="a.pdf")
    run = Agent(ScriptedModel(turn("See.", files=[chart, linked])), log=log).run("Draw.")
    await run
    events = [*await log.read(run.task_id)]
    answer, image, file = fold_task(events).task.artifacts
    assert answer.parts[0].text == "See."
    assert image.parts[0].raw == b"\x89PNG"
    assert image.parts[0].media_type == "image/png"
    assert file.parts[0].url == "https://example.org/a.pdf"
    assert file.name == "a.pdf"
    client = Client()
    for update in list_updates(events):
        client.apply(update)
    assert sorted(each.artifact_id for each in client.task.artifacts) == sorted(
        each.artifact_id for each in fold_task(events).task.artifacts
    )


async def test_part_of_a_paused_answer_is_a_status_and_not_the_answer() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel(turn("I search.", finish_reason="pause"), "It rains."), log=log).run("Weather?")
    await run
    events = [*await log.read(run.task_id)]
    statuses = [each for each in list_updates(events) if isinstance(each, pb.TaskStatusUpdateEvent)]
    assert [each.status.message.parts[0].text for each in statuses if each.status.HasField("message")] == ["I search."]
    assert artifact_texts(fold_task(events).task) == {f"{run.task_id}:answer": "It rains."}


@pytest.mark.parametrize(
    ("finish", "why"), [("length", "truncated"), ("content_filter", "filter"), ("unknown", "report")]
)
async def test_task_status_explains_an_incomplete_answer(finish: str, why: str) -> None:  # P15
    log = MemoryEventLog()
    result = await Agent(ScriptedModel(turn("half an ans", finish_reason=finish)), log=log).run("?")
    task = fold_task(await log.read(result.task_id)).task
    assert task.status.state == pb.TASK_STATE_COMPLETED
    [part] = task.status.message.parts
    assert part.text.startswith("The answer is incomplete: ")
    assert why in part.text


async def test_task_status_contains_the_limit_or_vendor_reason_of_an_incomplete_answer() -> None:  # P15
    log = MemoryEventLog()
    truncated = turn("half", finish_reason="length", raw_finish_reason="max_tokens")
    unknown = turn("half", finish_reason="unknown", raw_finish_reason="weird")
    agent = Agent(ScriptedModel(truncated, unknown), log=log, settings=ModelSettings(max_tokens=7))
    status_texts: list[str] = []
    for _ in range(2):
        result = await agent.run("?")
        status_texts.append(fold_task(await log.read(result.task_id)).task.status.message.parts[0].text)
    assert "max_tokens=7" in status_texts[0]
    assert "'weird'" in status_texts[1]
