"""Runs of every kind as UI messages: the official client takes every chunk, and has what the log has."""

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
from rxloop.server.ui_messages.frames import DONE, Chunk, encode, ui_message
from rxloop.testing import virtual_time
from support.clients.ai_sdk import node
from support.faulty_components import PLANTED
from support.random_runs import NAME, RandomRun, random_run

EXAMPLES = 50
TOOLS = ("show_map",)


class Made(NamedTuple):
    """A run, and what three pages were told of it."""

    kind: RandomRun
    events: Sequence[Event]
    live: list[Chunk]
    """By a page that was there all the time."""
    replayed: list[Chunk]
    """By one that came when it was over."""
    pieces: list[list[Chunk]]
    """By one that was told each attempt when it was there."""


def told(events: Sequence[Event], **options: Any) -> list[Chunk]:
    found: list[Chunk] = []
    task = events[0]
    view = chunks(task.task_id, task.context_id, client_tools=TOOLS, **options)
    from_iterable(events).pipe(chat(), view).subscribe(found.append)
    return found


async def made_of(kind: RandomRun) -> Made:
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
        seen = await asyncio.wait_for(reading, 60)
    events = await log.read(task_id, deltas=log.keeps_deltas)
    ends = [place for place, event in enumerate(events) if ends_attempt(event)]
    pieces = [
        told(events[: end + 1], after=events[before].seq if before else 0)
        for before, end in zip([0, *ends], ends, strict=False)
    ]
    return Made(kind, events, seen, told(events), pieces)


@pytest.fixture(scope="module")
def runs() -> list[Made]:
    found: list[Made] = []

    @settings(
        max_examples=EXAMPLES,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        deadline=None,
    )
    @given(kind=random_run())
    def make(kind: RandomRun) -> None:
        with virtual_time() as time:
            found.append(time.run(made_of(kind)))

    make()
    return found


def frames_of(chunks: Sequence[Chunk]) -> list[str]:
    return [*(encode(each).decode() for each in chunks), DONE.decode()]


def without_void(message: Any) -> list[Any]:
    """The parts of a message that count: in each step what stands behind the last note that all before it is void."""
    steps: list[list[Any]] = [[]]
    for part in message["parts"]:
        if part["type"] == "step-start":
            steps.append([])
        elif part["type"] == "data-rxloop-void":
            steps[-1] = [each for each in steps[-1] if each["type"] not in ("text", "reasoning")]
        else:
            steps[-1].append(part)
    return [[each for each in step if each.get("errorText") != VOIDED] for step in steps]


VOIDED = "This call came to nothing, and was not carried out."


def normal(message: Any) -> list[Any]:
    """What counts of a message: a reader without deltas has texts and data in another order, and counts no tries."""
    return [
        (
            *("".join(part["text"] for part in step if part["type"] == kind) for kind in ("reasoning", "text")),
            [part for part in step if "toolCallId" in part],
            sorted(json.dumps(part) for part in step if part["type"].startswith("data-")),
        )
        for step in without_void(message)
    ]


@pytest.mark.service("node-clients")
async def test_the_client_takes_every_chunk_and_makes_the_message_of_the_log(runs: list[Made]) -> None:
    answers = [frames_of(each) for made in runs for each in (made.live, made.replayed)]
    pages = node()
    read = [await pages.do("read", frames=each) for each in answers]
    in_pieces = ([frames_of(piece) for piece in made.pieces] for made in runs)
    continued = [await pages.do("goes_on", pieces=each) for each in in_pieces]
    for place, made in enumerate(runs):
        live, replayed, pieces = read[2 * place], read[2 * place + 1], continued[place]
        expected = [each["errorText"] for each in made.replayed if each["type"] == "error"]
        for answer in (live, replayed, pieces):
            assert [each["message"] for each in answer["errors"]] == expected, made.kind
        assert replayed["message"] == ui_message(made.replayed), made.kind
        assert live["message"] == ui_message(made.live), made.kind
        assert normal(live["message"]) == normal(replayed["message"]), made.kind
        assert normal(pieces["message"]) == normal(replayed["message"]), made.kind


def test_the_message_has_what_the_log_has(runs: list[Made]) -> None:
    for made in runs:
        message = ui_message(made.replayed)
        shown = [event.to_public() for event in made.events]
        main = [each for each in shown if each is not None and each.parent_task_id is None and each.branch is None]
        said = "".join(each.content for each in main if isinstance(each, ContentCompleteEvent))
        steps = without_void(message)
        assert "".join(part["text"] for step in steps for part in step if part["type"] == "text") == said, made.kind
        results = {
            f"{each.task_id}:{each.step}:{each.index}": each for each in main if isinstance(each, ToolCompleteEvent)
        }
        parts = {part["toolCallId"]: part for part in message["parts"] if "toolCallId" in part}
        for slot, event in results.items():
            part = parts[slot]
            assert part.get("output") == event.result, made.kind
            assert (part["state"] == "output-available") == event.success, made.kind
        last = [each for each in main if isinstance(each, StatusUpdateEvent) and each.final][-1]
        assert message["metadata"]["rxloop"]["state"] == last.state


def test_whatever_begins_ends(runs: list[Made]) -> None:
    for made in runs:
        for each in (made.live, made.replayed):
            message = ui_message(each)
            assert {part.get("state") for part in message["parts"]} <= CLOSED, made.kind
            types = [chunk["type"] for chunk in each]
            assert types[-1] in ("finish", "error", "abort")
            assert types.count("start-step") == types.count("finish-step")


CLOSED = {None, "done", "output-available", "output-error", "output-denied"}


def test_nothing_that_is_planted_is_in_any_byte(runs: list[Made]) -> None:
    for made in runs:
        for each in (made.live, made.replayed, *made.pieces):
            assert PLANTED not in "".join(frames_of(each))
