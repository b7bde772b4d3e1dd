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
    begun,
    begun_at,
    check,
    end,
    equal,
    ids,
    new_log,
    note,
    raises,
    shared,
    status,
    task,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def appended_events_are_read_back_in_order(log: EventLog) -> None:
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

    equal(list(await log.read("run")), first + second)
    equal([event.seq for event in await log.read("run", after_seq=2)], [3, 4, 5])
    equal(list(await log.read("run", after_seq=5)), [])


@check(CHECKS)
async def an_unknown_run_is_an_error_that_names_it(log: EventLog) -> None:
    """`read` and `follow` raise `UnknownRun`."""
    with raises(UnknownRun, "nowhere"):
        await log.read("nowhere")
    with raises(UnknownRun, "nowhere"):
        await anext(aiter(log.follow("nowhere")))


@CHECKS.append
async def a_writer_that_expects_another_last_event_is_refused(make_log: MakeLog) -> None:
    """The error contains the run id and both numbers."""
    for expected_seq in (0, 1, 3):
        async with new_log(make_log) as log:
            await log.append("run-7", begun(), expected_seq=0)

            with raises(ConflictError, "run-7", rf"\b{expected_seq}\b", r"\b2\b"):
                await log.append("run-7", [note(expected_seq + 1)], expected_seq=expected_seq)

            equal(len(await log.read("run-7")), 2)


@CHECKS.append
async def of_two_writers_at_once_one_wins(make_log: MakeLog) -> None:
    """The other writer is refused, even if both batches are identical."""
    for mine, theirs in (
        (note(3, task_id="mine"), note(3, task_id="theirs")),
        (note(3, timestamp=1), note(3, timestamp=1)),
    ):
        for writers in (("mine", "theirs"), ("", "")):
            async with new_log(make_log) as log:
                await log.append("run", begun(), expected_seq=0)

                outcomes = await asyncio.gather(
                    log.append("run", [mine], expected_seq=2, writer=writers[0]),
                    log.append("run", [theirs], expected_seq=2, writer=writers[1]),
                    return_exceptions=True,
                )

                equal([type(outcome) for outcome in outcomes if outcome is not None], [ConflictError])
                equal(len(await log.read("run")), 3)


@check(CHECKS)
async def of_two_writers_that_begin_a_run_with_the_same_bytes_one_is_refused(log: EventLog) -> None:
    """A new run belongs to its first writer."""
    await log.append("run", begun_at(1), expected_seq=0, writer="mine")

    with raises(ConflictError):
        await log.append("run", begun_at(1), expected_seq=0, writer="theirs")


@check(CHECKS)
async def a_batch_that_its_writer_appends_again_is_there_once(log: EventLog) -> None:
    """A writer may retry a batch with additional events if the result of the first attempt is unknown."""
    await log.append("run", begun_at(1), expected_seq=0, writer="mine")
    batch = [note(3, timestamp=1), note(4, timestamp=1)]
    await log.append("run", batch, expected_seq=2, writer="mine")

    await log.append("run", batch, expected_seq=2, writer="mine")
    await log.append("run", [*batch, note(5)], expected_seq=2, writer="mine")

    equal([event.seq for event in await log.read("run")], [1, 2, 3, 4, 5])


@CHECKS.append
async def other_words_under_the_same_numbers_are_a_conflict_for_their_writer_too(make_log: MakeLog) -> None:
    """Batches are only considered equal if their bytes are equal."""
    for batch in ([note(3, timestamp=2)], [note(3, timestamp=1), note(4)], []):
        async with new_log(make_log) as log:
            await log.append("run", begun_at(1), expected_seq=0, writer="mine")
            await log.append("run", [note(3, timestamp=1), note(4, timestamp=1)], expected_seq=2, writer="mine")

            if batch:
                with raises(ConflictError):
                    await log.append("run", batch, expected_seq=2, writer="mine")
            with raises(ConflictError):
                await log.append("run", [note(6)], expected_seq=5, writer="mine")

            equal([event.timestamp for event in await log.read("run", after_seq=2)], [1, 1])


@CHECKS.append
async def the_same_bytes_are_a_conflict_for_everybody_but_their_writer(make_log: MakeLog) -> None:
    """Unnamed writers cannot retry a batch."""
    for writer, other in (("", ""), ("mine", "theirs")):
        async with new_log(make_log) as log:
            await log.append("run", begun_at(1), expected_seq=0)
            await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer=writer)

            with raises(ConflictError):
                await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer=other)


@check(CHECKS)
async def the_writer_of_a_run_is_that_of_its_last_batch(log: EventLog) -> None:
    """Earlier writers can no longer retry their batches."""
    await log.append("run", begun_at(1), expected_seq=0, writer="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer="second")

    with raises(ConflictError):
        await log.append("run", begun_at(1), expected_seq=0, writer="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, writer="second")

    equal(len(await log.read("run")), 3)


@CHECKS.append
async def a_batch_with_a_bad_event_is_refused_as_a_whole(make_log: MakeLog) -> None:
    """Batches are atomic. The error contains the name or number of the invalid event."""
    delta = ContentDeltaEvent(seq=4, delta="a")
    for batch, name in (
        ([note(3), note(5)], "5"),
        ([note(3), note(3)], "3"),
        ([note(4)], "4"),
        ([note(3), delta], "content-delta"),
    ):
        async with new_log(make_log) as log:
            await log.append("run", begun(), expected_seq=0)

            with raises(EventLogError, name):
                await log.append("run", batch, expected_seq=2)

            equal([event.seq for event in await log.read("run")], [1, 2])
            await log.append("run", [note(3)], expected_seq=2)


@check(CHECKS)
async def a_refused_first_batch_leaves_no_run(log: EventLog) -> None:
    """Runs are created together with their first batch."""
    with raises(EventLogError):
        await log.append("run", [task(), note(3)], expected_seq=0)

    equal(list(await log.list_runs()), [])


@check(CHECKS)
async def an_empty_batch_changes_nothing(log: EventLog) -> None:
    """Empty batches do not create runs."""
    await log.append("run", [], expected_seq=0)
    equal(list(await log.list_runs()), [])

    await log.append("run", begun(), expected_seq=0)
    await log.append("run", [], expected_seq=2)
    equal(len(await log.read("run")), 2)


@check(CHECKS)
async def a_batch_that_its_caller_changes_later_stays_as_it_was(log: EventLog) -> None:
    """The log stores events, not a reference to the list."""
    batch = begun()
    await log.append("run", batch, expected_seq=0)

    batch.clear()

    equal(len(await log.read("run")), 2)


@check(CHECKS, keep_deltas=True)
async def transient_events_are_given_on_demand(log: EventLog) -> None:
    """Transient events are returned in order, and only if requested."""
    delta = [ContentDeltaEvent(seq=2, sub=at, delta="a", step="1", timestamp=1_000 + at) for at in (1, 2)]
    await log.append("run", [*begun(), *delta], expected_seq=0)
    await log.append("run", [ContentDeltaEvent(seq=2, sub=3, delta="b")], expected_seq=2)
    await log.append("run", [note(3)], expected_seq=2)

    whole = await log.read("run", deltas=True)
    equal([(event.seq, event.sub) for event in whole], [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)])
    equal(list(whole[2:4]), delta)
    equal([event.seq for event in await log.read("run")], [1, 2, 3])
    equal([event.seq for event in await log.read("run", after_seq=2, deltas=True)], [3])


@check(CHECKS, keep_deltas=True)
async def transient_events_that_are_appended_again_are_there_once(log: EventLog) -> None:
    """A retried batch replaces or omits its transient events."""
    batch = [*begun_at(1), ContentDeltaEvent(seq=2, sub=1, delta="a", timestamp=1)]
    await log.append("run", batch, expected_seq=0, writer="mine")

    await log.append("run", batch, expected_seq=0, writer="mine")
    await log.append("run", [*batch, note(3)], expected_seq=0, writer="mine")

    found = [(event.seq, event.sub) for event in await log.read("run", deltas=True)]
    equal(found, [(1, 0), (2, 0), (2, 1), (3, 0)])


@check(CHECKS, keep_deltas=True)
async def transient_events_have_to_be_in_order_too(log: EventLog) -> None:
    """Transient events require the `seq` of the last durable event and an increasing `sub`."""
    await log.append("run", begun(), expected_seq=0)
    for bad in (ContentDeltaEvent(seq=1, sub=1, delta="a"), ContentDeltaEvent(seq=2, sub=0, delta="a")):
        with raises(EventLogError, "content-delta has the number"):
            await log.append("run", [bad], expected_seq=2)


@check(CHECKS)
async def a_record_has_what_the_events_of_its_run_say(log: EventLog) -> None:
    """Records reflect the most recent status, event numbers, usage and error."""
    first = task(context_id="c", timestamp=1_000, owner="ann", metadata={"tenant": "t", "public": {"n": [1, None]}})
    await log.append("run", [first], expected_seq=0)
    await log.append("run", [status(2, "working", attempt=1, timestamp=1_010)], expected_seq=1)
    begun_record = RunRecord(
        *("run", "c", "helper", "working", 1, 2, 1_000, 1_010), model="m", owner="ann", metadata=first.metadata
    )
    equal(list(await log.list_runs()), [begun_record])

    usage, error = Usage(input_tokens=7, cached_tokens=3), ErrorInfo(code="server", message="503", retryable=True)
    failed = end(3, "failed", attempt=1, timestamp=1_020, usage=usage, error=error)
    nested = end(4, attempt=2, timestamp=2_005, parent_task_id="run", usage=Usage(input_tokens=99))
    await log.append("run", [failed], expected_seq=2)
    await log.append("run", [nested], expected_seq=3)
    await log.append("run", [status(5, "working", attempt=2, resumed=True, timestamp=2_010)], expected_seq=4)
    again = replace(begun_record, attempt=2, seq=5, updated=2_010, usage=usage, error=error)
    equal(list(await log.list_runs()), [again])

    usage = Usage(input_tokens=12)
    await log.append("run", [end(6, attempt=2, timestamp=2_020, usage=usage)], expected_seq=5)
    over = replace(again, state="completed", seq=6, updated=2_020, usage=usage, error=None)
    equal(list(await log.list_runs()), [over])


@check(CHECKS)
async def runs_come_in_the_order_in_which_the_log_got_them(log: EventLog) -> None:
    """Insertion order is independent of timestamps."""
    for task_id, context_id, timestamp in [("2", "a", 20), ("1", "a", 10), ("3", "b", 15), ("4", "a", 30)]:
        await log.append(task_id, [task(context_id=context_id, timestamp=timestamp)], expected_seq=0)

    equal(ids(await log.list_runs(context_id="a")), ["2", "1", "4"])
    equal(ids(await log.list_runs()), ["2", "1", "3", "4"])
    equal(ids(await log.list_runs(unfinished=True)), ["2", "1", "3", "4"])
    equal(list(await log.list_runs(context_id="nowhere")), [])


@check(CHECKS)
async def unfinished_runs_are_those_that_can_go_on(log: EventLog) -> None:
    """All states except completed and failed are unfinished."""
    for at, state in enumerate(ENDS):
        events = [task(context_id="c", timestamp=at), status(2, "working"), end(3, state)]
        await log.append(state, events, expected_seq=0)
    await log.append("working", [task(context_id="c", timestamp=9), status(2, "working")], expected_seq=0)

    unfinished = await log.list_runs(context_id="c", unfinished=True)

    equal(ids(unfinished), ["canceled", "input-required", "auth-required", "working"])


@CHECKS.append
async def a_log_may_be_closed_more_than_once(make_log: MakeLog) -> None:
    """`aclose` can be called multiple times."""
    log = make_log()
    await log.append("run", begun(), expected_seq=0)

    await log.aclose()
    await log.aclose()


@shared(SHARED)
async def what_one_has_written_the_other_reads_and_goes_on_after(one: EventLog, two: EventLog) -> None:
    """Writers with outdated numbers are refused, regardless of the log object. Other runs are unaffected."""
    await one.append("run", begun(), expected_seq=0)
    equal([event.seq for event in await two.read("run")], [1, 2])
    await two.append("run", [note(3)], expected_seq=2)
    await one.append("other", begun("other"), expected_seq=0)

    with raises(ConflictError, r"\b2\b", r"\b3\b"):
        await one.append("run", [note(3)], expected_seq=2)
    equal(ids(await two.list_runs()), ["run", "other"])
    equal([record.seq for record in await one.list_runs()], [3, 2])


@shared(SHARED)
async def of_two_that_write_at_once_one_wins(one: EventLog, two: EventLog) -> None:
    """The same applies to new and existing runs."""
    for seq in (0, 2):
        batch = begun() if not seq else [note(3)]
        outcomes = await asyncio.gather(
            *(log.append("run", batch, expected_seq=seq) for log in (one, two)), return_exceptions=True
        )
        equal([type(outcome) for outcome in outcomes if outcome is not None], [ConflictError])
    equal([event.seq for event in await one.read("run")], [1, 2, 3])


@shared(SHARED)
async def a_batch_that_its_writer_appends_again_elsewhere_is_there_once(one: EventLog, two: EventLog) -> None:
    """This happens when a connection breaks before the response arrives."""
    await one.append("run", begun_at(1), expected_seq=0, writer="mine")
    await two.append("run", [*begun_at(1), note(3, timestamp=1)], expected_seq=0, writer="mine")
    equal([event.seq for event in await one.read("run")], [1, 2, 3])
    with raises(ConflictError):
        await one.append("run", [note(3, timestamp=1)], expected_seq=2, writer="theirs")
