"""Generated runs as UI messages, whose chunks the official client must accept and which must match the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from reactivex import from_iterable

from rxloop import Event, Runtime
from rxloop.protocol.events import ContentCompleteEvent, StatusUpdateEvent, ToolCompleteEvent, ends_attempt
from rxloop.server.core.chat_fold import chat
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import DONE, Chunk, assemble_message, encode
from rxloop.testing import virtual_time
from support.clients.ai_sdk import node
from support.faulty_components import PLANTED
from support.random_runs import NAME, RandomRun, random_run

EXAMPLES = 50
TOOLS = ("show_map",)


class StreamedRun(NamedTuple):
    """Run with the chunks for three pages."""

    kind: RandomRun
    events: Sequence[Event]
    live: list[Chunk]
    """Chunks received during the run."""
    replayed: list[Chunk]
    """Chunks read from the event log."""
    pieces: list[list[Chunk]]
    """Chunks received during each attempt."""


def list_chunks(events: Sequence[Event], **options: Any) -> list[Chunk]:
    collected: list[Chunk] = []
    task = events[0]
    view = chunks(task.task_id, task.context_id, client_tools=TOOLS, **options)
    from_iterable(events).pipe(chat(), view).subscribe(collected.append)
    return collected


async def stream_run(kind: RandomRun) -> StreamedRun:
    log = kind.log()
    async with Runtime({NAME: kind.agent()}, log=log) as runtime:

        async def live() -> list[Chunk]:
            async for first in runtime.events:
                view = chunks(first.root_task_id, first.context_id, client_tools=TOOLS)
                return [each async for each in runtime.follow(first.root_task_id).pipe(chat(), view)]
            raise AssertionError

        reading = asyncio.create_task(live())
        await asyncio.sleep(0)
        task_id = await asyncio.wait_for(kind.execute(runtime), 60)
        live_events = await asyncio.wait_for(reading, 60)
    events = await log.read(task_id, deltas=log.keeps_deltas)
    ends = [index for index, event in enumerate(events) if ends_attempt(event)]
    pieces = [
        list_chunks(events[: end + 1], after=events[start].seq if start else 0)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    return StreamedRun(kind, events, live_events, list_chunks(events), pieces)


@pytest.fixture(scope="module")
def runs() -> list[StreamedRun]:
    streamed: list[StreamedRun] = []

    @settings(
        max_examples=EXAMPLES,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        deadline=None,
    )
    @given(kind=random_run())
    def collect(kind: RandomRun) -> None:
        with virtual_time() as time:
            streamed.append(time.run(stream_run(kind)))

    collect()
    return streamed


def encode_frames(chunks: Sequence[Chunk]) -> list[str]:
    return [*(encode(each).decode() for each in chunks), DONE.decode()]


def remove_void(message: Any) -> list[Any]:
    """Return the parts of each step, excluding discarded content."""
    steps: list[list[Any]] = [[]]
    for part in message["parts"]:
        if part["type"] == "step-start":
            steps.append([])
        elif part["type"] == "data-rxloop-void":
            steps[-1] = [each for each in steps[-1] if each["type"] not in ("text", "reasoning")]
        else:
            steps[-1].append(part)
    return [[each for each in step if each.get("errorText") != DISCARDED] for step in steps]


DISCARDED = "The call was discarded and not executed."


def normalise(message: Any) -> list[Any]:
    """Return message parts in a canonical order."""
    return [
        (
            *("".join(part["text"] for part in step if part["type"] == kind) for kind in ("reasoning", "text")),
            [part for part in step if "toolCallId" in part],
            sorted(json.dumps(part) for part in step if part["type"].startswith("data-")),
        )
        for step in remove_void(message)
    ]


@pytest.mark.service("node-clients")
async def test_client_accepts_every_chunk_and_has_the_message_of_the_log(runs: list[StreamedRun]) -> None:
    answers = [encode_frames(each) for run in runs for each in (run.live, run.replayed)]
    pages = node()
    read = [await pages.do("read", frames=each) for each in answers]
    in_pieces = ([encode_frames(piece) for piece in run.pieces] for run in runs)
    continued = [await pages.do("goes_on", pieces=each) for each in in_pieces]
    for index, run in enumerate(runs):
        live, replayed, pieces = read[2 * index], read[2 * index + 1], continued[index]
        expected = [each["errorText"] for each in run.replayed if each["type"] == "error"]
        for answer in (live, replayed, pieces):
            assert [each["message"] for each in answer["errors"]] == expected, run.kind
        assert replayed["message"] == assemble_message(run.replayed), run.kind
        assert live["message"] == assemble_message(run.live), run.kind
        assert normalise(live["message"]) == normalise(replayed["message"]), run.kind
        assert normalise(pieces["message"]) == normalise(replayed["message"]), run.kind


def test_message_has_the_content_of_the_log(runs: list[StreamedRun]) -> None:
    for run in runs:
        message = assemble_message(run.replayed)
        public_events = [event.to_public() for event in run.events]
        main = [
            each for each in public_events if each is not None and each.parent_task_id is None and each.branch is None
        ]
        text = "".join(each.content for each in main if isinstance(each, ContentCompleteEvent))
        steps = remove_void(message)
        assert "".join(part["text"] for step in steps for part in step if part["type"] == "text") == text, run.kind
        results = {
            f"{each.task_id}:{each.step}:{each.index}": each for each in main if isinstance(each, ToolCompleteEvent)
        }
        parts = {part["toolCallId"]: part for part in message["parts"] if "toolCallId" in part}
        for slot, event in results.items():
            part = parts[slot]
            assert part.get("output") == event.result, run.kind
            assert (part["state"] == "output-available") == event.success, run.kind
        last = [each for each in main if isinstance(each, StatusUpdateEvent) and each.final][-1]
        assert message["metadata"]["rxloop"]["state"] == last.state


def test_all_parts_and_steps_are_closed(runs: list[StreamedRun]) -> None:
    for run in runs:
        for each in (run.live, run.replayed):
            message = assemble_message(each)
            assert {part.get("state") for part in message["parts"]} <= CLOSED, run.kind
            types = [chunk["type"] for chunk in each]
            assert types[-1] in ("finish", "error", "abort")
            assert types.count("start-step") == types.count("finish-step")


CLOSED = {None, "done", "output-available", "output-error", "output-denied"}


def test_hidden_content_is_in_no_chunk(runs: list[StreamedRun]) -> None:
    for run in runs:
        for each in (run.live, run.replayed, *run.pieces):
            assert PLANTED not in "".join(encode_frames(each))
