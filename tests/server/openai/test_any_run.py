"""Generated runs as OpenAI responses and completions, live and from the log."""

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
from rxloop.server.openai.call import get_response_info
from rxloop.server.openai.completions import CompletionFold, completion_chunks
from rxloop.server.openai.response_fold import ResponseFold, response_events
from rxloop.server.openai.response_items import ResponseId
from rxloop.testing import virtual_time
from support.faulty_components import PLANTED
from support.random_runs import NAME, SHOW_MAP, RandomRun, random_run, silence_logs
from support.vendors.openai_checks import Json, check_chunks, check_completion, check_stream, response_text

RUNS = int(os.environ.get("RXLOOP_OPENAI_RUNS", "30"))
FUNCTION = {"type": "function", "strict": None, **SHOW_MAP}


async def read_logged(runtime: Runtime, record: RunRecord, number: int, *, deltas: bool) -> tuple[ResponseFold, Any]:
    """Return a response and its events from the log."""
    events: list[Json] = []
    fold = ResponseFold(get_response_info(record, runtime), ResponseId(record.task_id, number), events.append)
    chat = ChatFold(fold.take)
    for event in await runtime.log.read(record.task_id, deltas=deltas):
        public_event = event.to_public()
        if public_event is not None:
            chat.take(public_event)
    return fold, events


async def wait_for_run(log: MemoryEventLog) -> RunRecord:
    while not (records := await log.list_runs()):  # noqa: ASYNC110 (in virtual time)
        await asyncio.sleep(0)
    return records[0]


async def check_run(kind: RandomRun) -> None:
    log, live, chunks, folds = kind.log(), list[Json](), list[Json](), list[CompletionFold]()

    def fold(emit: Callable[[Json], None]) -> CompletionFold:
        folds.append(CompletionFold("run", NAME, 0, emit, reasoning=True, usage=True))
        return folds[0]

    async with Runtime({NAME: kind.agent()}, log=log) as runtime:
        executing = asyncio.create_task(kind.execute(runtime, metadata={"openai": {"tools": [FUNCTION]}}))
        record = await wait_for_run(log)
        view = response_events(get_response_info(record, runtime), ResponseId(record.task_id, 1))
        reading = asyncio.create_task(_collect(live, runtime.follow(record.task_id).pipe(view)))
        chatting = asyncio.create_task(_collect(chunks, runtime.follow(record.task_id).pipe(completion_chunks(fold))))
        await asyncio.wait_for(asyncio.gather(executing, reading, chatting), 60)
    record = await log.get_record(record.task_id)
    everything, _ = await read_logged(runtime, record, 1 << 30, deltas=False)
    ids: list[str] = []
    for number in range(1, len(everything.pauses) + 1):
        complete = check_stream((await read_logged(runtime, record, number, deltas=False))[1])
        with_deltas = (await read_logged(runtime, record, number, deltas=log.keeps_deltas))[1]
        final = check_stream(with_deltas)
        assert response_text(final) == response_text(complete)
        ids += [item["id"] for item in final["output"] if item["type"] != "mcp_approval_request"]
        if number == 1:
            seen = check_stream(live)
            assert response_text(seen) == response_text(complete)
            assert [each["type"] for each in seen["output"]] == [each["type"] for each in final["output"]]
        if log.keeps_deltas:
            # Sequence numbers are stable.
            response_id = ResponseId(record.task_id, number)
            followed = follow(log, record.task_id, deltas=True, until="end")
            again: list[Json] = []
            await _collect(again, followed.pipe(response_events(get_response_info(record, runtime), response_id)))
            assert again == with_deltas
    assert not [name for name, count in Counter(ids).items() if count > 1]
    text = orjson.dumps([live, chunks])
    assert PLANTED.encode() not in text
    check_chunks(each for each in chunks if each)
    if folds[0].error is None:
        assert chunks[-1] == {}
        check_completion(folds[0].make_completion())
    else:
        assert chunks[-1] == {"error": folds[0].error}


async def _collect(target: list[Json], events: Any) -> None:
    target += [event async for event in events]


@settings(max_examples=RUNS, phases=[Phase.generate])
@given(kind=random_run())
def test_generated_runs_are_valid_streams_for_the_client(kind: RandomRun) -> None:
    with silence_logs(), virtual_time() as time:
        time.run(check_run(kind))
