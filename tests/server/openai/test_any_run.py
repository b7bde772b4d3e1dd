"""Runs of every kind as OpenAI's client reads them: live, and out of the log."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import Phase, given, settings

from rxloop import MemoryEventLog, Runtime, follow
from rxloop.pipeline.records import RunRecord
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.openai.call import about_of
from rxloop.server.openai.completions import CompletionFold, completion_chunks
from rxloop.server.openai.response_fold import ResponseFold, response_events
from rxloop.server.openai.response_items import ResponseId
from rxloop.testing import virtual_time
from support.faulty_components import PLANTED
from support.random_runs import NAME, SHOW_MAP, RandomRun, random_run, silence_logs
from support.vendors.openai_checks import Json, check_chunks, check_completion, check_stream, response_text

RUNS = int(os.environ.get("RXLOOP_OPENAI_RUNS", "30"))
FUNCTION = {"type": "function", "strict": None, **SHOW_MAP}


async def recorded(runtime: Runtime, record: RunRecord, turn: int, *, deltas: bool) -> tuple[ResponseFold, Any]:
    """One response out of the log, and its events."""
    events: list[Json] = []
    fold = ResponseFold(about_of(record, runtime), ResponseId(record.task_id, turn), events.append)
    chat = ChatFold(fold.take)
    for event in await runtime.log.read(record.task_id, deltas=deltas):
        shown = event.to_public()
        if shown is not None:
            chat.take(shown)
    return fold, events


async def started(log: MemoryEventLog) -> RunRecord:
    while not (found := await log.list_runs()):  # noqa: ASYNC110 (in virtual time)
        await asyncio.sleep(0)
    return found[0]


async def played(kind: RandomRun) -> None:
    log, live, chunks, folds = kind.log(), list[Json](), list[Json](), list[CompletionFold]()

    def fold(emit: Callable[[Json], None]) -> CompletionFold:
        folds.append(CompletionFold("run", NAME, 0, emit, reasoning=True, usage=True))
        return folds[0]

    async with Runtime({NAME: kind.agent()}, log=log) as runtime:
        playing = asyncio.create_task(kind.execute(runtime, metadata={"openai": {"tools": [FUNCTION]}}))
        record = await started(log)
        view = response_events(about_of(record, runtime), ResponseId(record.task_id, 1))
        reading = asyncio.create_task(_into(live, runtime.follow(record.task_id).pipe(view)))
        chatting = asyncio.create_task(_into(chunks, runtime.follow(record.task_id).pipe(completion_chunks(fold))))
        await asyncio.wait_for(asyncio.gather(playing, reading, chatting), 60)
    record = await log.get_record(record.task_id)
    everything, _ = await recorded(runtime, record, 1 << 30, deltas=False)
    ids: list[str] = []
    for turn in range(1, len(everything.pauses) + 1):
        whole = check_stream((await recorded(runtime, record, turn, deltas=False))[1])
        with_deltas = (await recorded(runtime, record, turn, deltas=log.keeps_deltas))[1]
        final = check_stream(with_deltas)
        assert response_text(final) == response_text(whole)
        ids += [item["id"] for item in final["output"] if item["type"] != "mcp_approval_request"]
        if turn == 1:
            seen = check_stream(live)
            assert response_text(seen) == response_text(whole)
            assert [each["type"] for each in seen["output"]] == [each["type"] for each in final["output"]]
        if log.keeps_deltas:
            # The numbers are the same wherever the log is read.
            which = ResponseId(record.task_id, turn)
            followed = follow(log, record.task_id, deltas=True, until="end")
            again: list[Json] = []
            await _into(again, followed.pipe(response_events(about_of(record, runtime), which)))
            assert again == with_deltas
    assert not [name for name, count in Counter(ids).items() if count > 1]
    said = orjson.dumps([live, chunks])
    assert PLANTED.encode() not in said
    check_chunks(each for each in chunks if each)
    if folds[0].error is None:
        assert chunks[-1] == {}
        check_completion(folds[0].completion())
    else:
        assert chunks[-1] == {"error": folds[0].error}


async def _into(found: list[Json], events: Any) -> None:
    found += [event async for event in events]


@settings(max_examples=RUNS, phases=[Phase.generate])
@given(kind=random_run())
def test_every_run_is_streams_that_the_client_takes(kind: RandomRun) -> None:
    with silence_logs(), virtual_time() as time:
        time.run(played(kind))
