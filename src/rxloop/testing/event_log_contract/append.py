"""Checks for appending events."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rxloop.errors import ConflictError, EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event, ToolCompleteEvent
from rxloop.protocol.messages import Citation, ErrorInfo, ImagePart, ToolCall, Usage
from rxloop.testing.event_log_contract.toolkit import (
    ENDS,
    Check,
    MakeLog,
    SharedCheck,
    assert_equal,
    check,
    end,
    ids,
    new_log,
    note,
    raises,
    shared_check,
    start_events,
    status,
    task,
    timed_start_events,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def read_returns_appended_events_in_order(log: EventLog) -> None:
    """Events are returned unchanged and in order. `after_seq` excludes earlier events."""
    call = ToolCall(id="1", name="weather", arguments={"city": "Ålesund"})
    image = ImagePart(data=b"\x00\xff", media_type="image/png")
    first: list[Event] = [
        task(context_id="c", task_id="run", timestamp=1_700_000_000_123),
        status(2, "working", metadata={"a": [1, None]}),
    ]
    second: list[Event] = [
        ContentCompleteEvent(seq=3, step="1", tool_calls=[call], provider_state={"signed": "x"}),
        ToolCompleteEvent(seq=4, call=call, success=True, result={"c": 20.5}, content="20.5", hidden=True),
        ContentCompleteEvent(seq=5, step="2", content="See.", files=[image], citations=[Citation(title="A page")]),
    ]
    await log.append("run", first, expected_seq=0)
    await log.append("run", second, expected_seq=2)

    assert_equal(list(await log.read("run")), first + second)
    assert_equal([event.seq for event in await log.read("run", after_seq=2)], [3, 4, 5])
    assert_equal(list(await log.read("run", after_seq=5)), [])


@check(CHECKS)
async def read_and_follow_raise_unknown_run(log: EventLog) -> None:
    """`read` and `follow` raise `UnknownRun`."""
    with raises(UnknownRun, "nowhere"):
        await log.read("nowhere")
    with raises(UnknownRun, "nowhere"):
        await anext(aiter(log.follow("nowhere")))


@CHECKS.append
async def append_rejects_a_wrong_expected_seq(make_log: MakeLog) -> None:
    """Check that the error contains the run id, the expected and the stored number."""
    for expected_seq in (0, 1, 3):
        async with new_log(make_log) as log:
            await log.append("run-7", start_events(), expected_seq=0)

            with raises(ConflictError, "run-7", rf"\b{expected_seq}\b", r"\b2\b"):
                await log.append("run-7", [note(expected_seq + 1)], expected_seq=expected_seq)

            assert_equal(len(await log.read("run-7")), 2)


@CHECKS.append
async def append_accepts_one_of_two_concurrent_writers(make_log: MakeLog) -> None:
    """Check that the other writer is rejected, even if both batches are identical."""
    for mine, theirs in (
        (note(3, task_id="mine"), note(3, task_id="theirs")),
        (note(3, timestamp=1), note(3, timestamp=1)),
    ):
        for writers in (("mine", "theirs"), ("", "")):
            async with new_log(make_log) as log:
                await log.append("run", start_events(), expected_seq=0)

                outcomes = await asyncio.gather(
                    log.append("run", [mine], expected_seq=2, writer=writers[0]),
                    log.append("run", [theirs], expected_seq=2, writer=writers[1]),
                    return_exceptions=True,
                )

                assert_equal([type(outcome) for outcome in outcomes if outcome is not None], [ConflictError])
                assert_equal(len(await log.read("run")), 3)


@check(CHECKS)
async def append_rejects_a_second_writer_of_an_identical_new_run(log: EventLog) -> None:
    """Check that a new run belongs to its first writer."""
    await log.append("run", timed_start_events(1), expected_seq=0, writer="mine")

    with raises(ConflictError):
        await log.append("run", timed_start_events(1), expected_seq=0, writer="theirs")


@check(CHECKS)
async def append_stores_a_retried_batch_once(log: EventLog) -> None:
    """Retry a batch with and without additional events."""
    await log.append("run", timed_start_events(1), expected_seq=0, writer="mine")
    batch = [note(3, timestamp=1), note(4, timestamp=1)]
    await log.append("run", batch, expected_seq=2, writer="mine")

    await log.append("run", batch, expected_seq=2, writer="mine")
    await log.append("run", [*batch, note(5)], expected_seq=2, writer="mine")

    assert_equal([event.seq for event in await log.read("run")], [1, 2, 3, 4, 5])


@CHECKS.append
async def append_rejects_a_retried_batch_with_other_events(make_log: MakeLog) -> None:
    """Batches are only considered equal if their bytes are equal."""
    for batch in ([note(3, timestamp=2)], [note(3, timestamp=1), note(4)], []):
        async with new_log(make_log) as log:
            await log.append("run", timed_start_events(1), expected_seq=0, writer="mine")
            await log.append("run", [note(3, timestamp=1), note(4, timestamp=1)], expected_seq=2, writer="mine")

            if batch:
                with raises(ConflictError):
                    await log.append("run", batch, expected_seq=2, writer="mine")
            with raises(ConflictError):
                await log.append("run", [note(6)], expected_seq=5, writer="mine")

            assert_equal([event.timestamp for event in await log.read("run", after_seq=2)], [1, 1])


@CHECKS.append
async def append_rejects_an_identical_batch_of_another_writer(make_log: MakeLog) -> None:
    """Unnamed writers cannot retry a batch."""
    for writer, other in (("", ""), ("mine", "theirs")):
        async with new_log(make_log) as log:
            await log.append("run", timed_start_events(1), expected_seq=0)
            await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer=writer)

            with raises(ConflictError):
                await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer=other)


@check(CHECKS)
async def append_rejects_a_retried_batch_of_an_earlier_writer(log: EventLog) -> None:
    """Earlier writers can no longer retry their batches."""
    await log.append("run", timed_start_events(1), expected_seq=0, writer="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer="second")

    with raises(ConflictError):
        await log.append("run", timed_start_events(1), expected_seq=0, writer="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer="second")

    assert_equal(len(await log.read("run")), 3)


@CHECKS.append
async def append_rejects_a_batch_with_an_invalid_event(make_log: MakeLog) -> None:
    """Batches are atomic. The error contains the name or number of the invalid event."""
    delta = ContentDeltaEvent(seq=4, delta="a")
    for batch, name in (
        ([note(3), note(5)], "5"),
        ([note(3), note(3)], "3"),
        ([note(4)], "4"),
        ([note(3), delta], "content-delta"),
    ):
        async with new_log(make_log) as log:
            await log.append("run", start_events(), expected_seq=0)

            with raises(EventLogError, name):
                await log.append("run", batch, expected_seq=2)

            assert_equal([event.seq for event in await log.read("run")], [1, 2])
            await log.append("run", [note(3)], expected_seq=2)


@check(CHECKS)
async def rejected_first_batch_creates_no_run(log: EventLog) -> None:
    """Check that runs are only created with a valid first batch."""
    with raises(EventLogError):
        await log.append("run", [task(), note(3)], expected_seq=0)

    assert_equal(list(await log.list_runs()), [])


@check(CHECKS)
async def empty_batch_changes_nothing(log: EventLog) -> None:
    """Empty batches do not create runs."""
    await log.append("run", [], expected_seq=0)
    assert_equal(list(await log.list_runs()), [])

    await log.append("run", start_events(), expected_seq=0)
    await log.append("run", [], expected_seq=2)
    assert_equal(len(await log.read("run")), 2)


@check(CHECKS)
async def stored_batch_ignores_later_changes_of_the_list(log: EventLog) -> None:
    """Check that the log does not keep a reference to the list."""
    batch = start_events()
    await log.append("run", batch, expected_seq=0)

    batch.clear()

    assert_equal(len(await log.read("run")), 2)


@check(CHECKS, keep_deltas=True)
async def read_returns_transient_events_on_demand(log: EventLog) -> None:
    """Transient events are returned in order, and only if requested."""
    delta = [ContentDeltaEvent(seq=2, sub=at, delta="a", step="1", timestamp=1_000 + at) for at in (1, 2)]
    await log.append("run", [*start_events(), *delta], expected_seq=0)
    await log.append("run", [ContentDeltaEvent(seq=2, sub=3, delta="b")], expected_seq=2)
    await log.append("run", [note(3)], expected_seq=2)

    complete = await log.read("run", deltas=True)
    assert_equal([(event.seq, event.sub) for event in complete], [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)])
    assert_equal(list(complete[2:4]), delta)
    assert_equal([event.seq for event in await log.read("run")], [1, 2, 3])
    assert_equal([event.seq for event in await log.read("run", after_seq=2, deltas=True)], [3])


@check(CHECKS, keep_deltas=True)
async def append_stores_retried_transient_events_once(log: EventLog) -> None:
    """Check that a retried batch does not duplicate transient events."""
    batch = [*timed_start_events(1), ContentDeltaEvent(seq=2, sub=1, delta="a", timestamp=1)]
    await log.append("run", batch, expected_seq=0, writer="mine")

    await log.append("run", batch, expected_seq=0, writer="mine")
    await log.append("run", [*batch, note(3)], expected_seq=0, writer="mine")

    found = [(event.seq, event.sub) for event in await log.read("run", deltas=True)]
    assert_equal(found, [(1, 0), (2, 0), (2, 1), (3, 0)])


@check(CHECKS, keep_deltas=True)
async def append_rejects_transient_events_out_of_order(log: EventLog) -> None:
    """Transient events require the `seq` of the last durable event and an increasing `sub`."""
    await log.append("run", start_events(), expected_seq=0)
    for bad in (ContentDeltaEvent(seq=1, sub=1, delta="a"), ContentDeltaEvent(seq=2, sub=0, delta="a")):
        with raises(EventLogError, "the number of content-delta"):
            await log.append("run", [bad], expected_seq=2)


@check(CHECKS)
async def record_reflects_the_events_of_its_run(log: EventLog) -> None:
    """Compare records with the latest status, event numbers, usage and error."""
    first = task(context_id="c", timestamp=1_000, owner="ann", metadata={"tenant": "t", "public": {"n": [1, None]}})
    await log.append("run", [first], expected_seq=0)
    await log.append("run", [status(2, "working", attempt=1, timestamp=1_010)], expected_seq=1)
    working = RunRecord(
        *("run", "c", "helper", "working", 1, 2, 1_000, 1_010), model="m", owner="ann", metadata=first.metadata
    )
    assert_equal(list(await log.list_runs()), [working])

    usage, error = Usage(input_tokens=7, cached_tokens=3), ErrorInfo(code="server", message="503", retryable=True)
    failed = end(3, "failed", attempt=1, timestamp=1_020, usage=usage, error=error)
    nested = end(4, attempt=2, timestamp=2_005, parent_task_id="run", usage=Usage(input_tokens=99))
    await log.append("run", [failed], expected_seq=2)
    await log.append("run", [nested], expected_seq=3)
    await log.append("run", [status(5, "working", attempt=2, resumed=True, timestamp=2_010)], expected_seq=4)
    again = replace(working, attempt=2, seq=5, updated=2_010, usage=usage, error=error)
    assert_equal(list(await log.list_runs()), [again])

    usage = Usage(input_tokens=12)
    await log.append("run", [end(6, attempt=2, timestamp=2_020, usage=usage)], expected_seq=5)
    over = replace(again, state="completed", seq=6, updated=2_020, usage=usage, error=None)
    assert_equal(list(await log.list_runs()), [over])


@check(CHECKS)
async def list_runs_keeps_the_insertion_order(log: EventLog) -> None:
    """Check that timestamps do not affect the order."""
    for task_id, context_id, timestamp in [("2", "a", 20), ("1", "a", 10), ("3", "b", 15), ("4", "a", 30)]:
        await log.append(task_id, [task(context_id=context_id, timestamp=timestamp)], expected_seq=0)

    assert_equal(ids(await log.list_runs(context_id="a")), ["2", "1", "4"])
    assert_equal(ids(await log.list_runs()), ["2", "1", "3", "4"])
    assert_equal(ids(await log.list_runs(unfinished=True)), ["2", "1", "3", "4"])
    assert_equal(list(await log.list_runs(context_id="nowhere")), [])


@check(CHECKS)
async def list_runs_returns_unfinished_runs(log: EventLog) -> None:
    """All states except completed and failed are unfinished."""
    for at, state in enumerate(ENDS):
        events = [task(context_id="c", timestamp=at), status(2, "working"), end(3, state)]
        await log.append(state, events, expected_seq=0)
    await log.append("working", [task(context_id="c", timestamp=9), status(2, "working")], expected_seq=0)

    unfinished = await log.list_runs(context_id="c", unfinished=True)

    assert_equal(ids(unfinished), ["canceled", "input-required", "auth-required", "working"])


@CHECKS.append
async def aclose_can_be_called_twice(make_log: MakeLog) -> None:
    """`aclose` can be called multiple times."""
    log = make_log()
    await log.append("run", start_events(), expected_seq=0)

    await log.aclose()
    await log.aclose()


@shared_check(SHARED)
async def logs_share_events_and_sequence_numbers(one: EventLog, two: EventLog) -> None:
    """Writers with outdated numbers are refused, regardless of the log object. Other runs are unaffected."""
    await one.append("run", start_events(), expected_seq=0)
    assert_equal([event.seq for event in await two.read("run")], [1, 2])
    await two.append("run", [note(3)], expected_seq=2)
    await one.append("other", start_events("other"), expected_seq=0)

    with raises(ConflictError, r"\b2\b", r"\b3\b"):
        await one.append("run", [note(3)], expected_seq=2)
    assert_equal(ids(await two.list_runs()), ["run", "other"])
    assert_equal([record.seq for record in await one.list_runs()], [3, 2])


@shared_check(SHARED)
async def append_accepts_one_of_two_concurrent_logs(one: EventLog, two: EventLog) -> None:
    """Check a new run and an existing run."""
    for seq in (0, 2):
        batch = start_events() if not seq else [note(3)]
        outcomes = await asyncio.gather(
            *(log.append("run", batch, expected_seq=seq) for log in (one, two)), return_exceptions=True
        )
        assert_equal([type(outcome) for outcome in outcomes if outcome is not None], [ConflictError])
    assert_equal([event.seq for event in await one.read("run")], [1, 2, 3])


@shared_check(SHARED)
async def append_stores_a_batch_retried_on_another_log_once(one: EventLog, two: EventLog) -> None:
    """Retry after a broken connection, using another log object."""
    await one.append("run", timed_start_events(1), expected_seq=0, writer="mine")
    await two.append("run", [*timed_start_events(1), note(3, timestamp=1)], expected_seq=0, writer="mine")
    assert_equal([event.seq for event in await one.read("run")], [1, 2, 3])
    with raises(ConflictError):
        await one.append("run", [note(3, timestamp=1)], expected_seq=2, writer="theirs")
