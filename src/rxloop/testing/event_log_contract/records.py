"""Checks for run records and stored folds."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import ConversationPage, HistoryQuery, RunEvents
from rxloop.protocol.commands import CancelCommand
from rxloop.state.run_state import RunFold
from rxloop.testing.event_log_contract.toolkit import (
    Check,
    begun,
    check,
    end,
    equal,
    ids,
    note,
    raises,
    status,
    task,
)

CHECKS: list[Check] = []


@check(CHECKS)
async def a_record_is_found_by_the_id_of_its_run(log: EventLog) -> None:
    """`get_record` and `list_runs` return equal records."""
    with raises(UnknownRun, "run"):
        await log.get_record("run")
    await log.append("other", begun("other"), expected_seq=0)
    await log.append("run", begun(metadata={"a": 1}), expected_seq=0)
    for seq in (3, 4):
        await log.append("run", [note(seq)], expected_seq=seq - 1)
        equal(await log.get_record("run"), (await log.list_runs())[-1])
    equal((await log.get_record("run")).seq, 4)


@check(CHECKS)
async def runs_are_listed_page_by_page(log: EventLog) -> None:
    """Cursors remain valid if runs are added or change their state."""
    for name in "abcde":
        await log.append(name, begun(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    equal(ids(await log.list_runs(limit=2)), ["a", "b"])
    await log.append("b", [end(3)], expected_seq=2)
    equal(ids(await log.list_runs(after="b", limit=2)), ["c", "d"])
    equal(ids(await log.list_runs(after="d", limit=2)), ["e"])
    equal(ids(await log.list_runs(after="e", limit=2)), [])
    equal(ids(await log.list_runs(after="b")), ["c", "d", "e"])
    equal(ids(await log.list_runs(context_id="c", after="b", limit=1)), ["c"])
    equal(ids(await log.list_runs(unfinished=True, after="a", limit=2)), ["c", "d"])
    with raises(UnknownRun, "nowhere"):
        await log.list_runs(after="nowhere")
    with raises(ConfigurationError, "limit=0"):
        await log.list_runs(limit=0)


@check(CHECKS)
async def runs_are_listed_newest_first(log: EventLog) -> None:
    """New runs do not affect the following pages."""
    for name in "abcde":
        await log.append(name, begun(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    equal(ids(await log.list_runs(newest_first=True)), ["e", "d", "c", "b", "a"])
    equal(ids(await log.list_runs(newest_first=True, limit=2)), ["e", "d"])
    await log.append("f", begun("f", context_id="c"), expected_seq=0)
    equal(ids(await log.list_runs(newest_first=True, after="d", limit=2)), ["c", "b"])
    equal(ids(await log.list_runs(newest_first=True, context_id="c", after="c")), ["a"])
    equal(ids(await log.list_runs(newest_first=True, after="a")), [])
    with raises(UnknownRun, "nowhere"):
        await log.list_runs(newest_first=True, after="nowhere")


@check(CHECKS)
async def conversations_are_listed_by_their_latest_runs(log: EventLog) -> None:
    """Only the latest matching run of each conversation is listed, on any page."""
    for name, context_id, owner in (
        ("a", "1", "ann"),
        ("b", "2", "bob"),
        ("c", "1", "ann"),
        ("d", "3", "ann"),
        ("e", "2", None),
        ("f", "1", "bob"),
    ):
        await log.append(name, [task(owner=owner, context_id=context_id, metadata={"name": name})], expected_seq=0)
    await log.append("d", [end(2)], expected_seq=1)

    equal(ids(await log.list_runs(latest_only=True)), ["d", "e", "f"])
    equal(ids(await log.list_runs(latest_only=True, newest_first=True)), ["f", "e", "d"])
    equal(ids(await log.list_runs(latest_only=True, newest_first=True, limit=1)), ["f"])
    # Run c is skipped because its conversation is on the first page.
    equal(ids(await log.list_runs(latest_only=True, newest_first=True, after="f", limit=2)), ["e", "d"])
    equal(ids(await log.list_runs(latest_only=True, after="d")), ["e", "f"])
    equal(ids(await log.list_runs(latest_only=True, owner="ann", newest_first=True)), ["d", "c"])
    equal(ids(await log.list_runs(latest_only=True, owner="bob")), ["b", "f"])
    equal(ids(await log.list_runs(latest_only=True, states=["submitted"])), ["e", "f"])
    equal(ids(await log.list_runs(latest_only=True, metadata={"name": "a"})), ["a"])
    equal(ids(await log.list_runs(latest_only=True, context_id="2")), ["e"])


async def _three(log: EventLog) -> None:
    """Create runs with different values for all filters."""
    ann: dict[str, Any] = {"tenant": "t", "n": 1, "deep": {"b": [1, None], "a": "é"}, "odd key.'": True}
    bob: dict[str, Any] = {"tenant": "u", "n": True, "none": None}
    for name, owner, metadata, at in (("1", "ann", ann, 100), ("2", "bob", bob, 200), ("3", None, {}, 150)):
        first = task(owner=owner, metadata=metadata, timestamp=at, context_id="c")
        await log.append(name, [first], expected_seq=0)
    await log.append("1", [end(2, "failed")], expected_seq=1)
    await log.append("2", [end(2, "canceled")], expected_seq=1)
    other = task(context_id="c", timestamp=300).model_copy(update={"agent_name": "other"})
    await log.append("4", [other], expected_seq=0)


@check(CHECKS)
async def runs_are_chosen_by_what_their_records_say(log: EventLog) -> None:
    """Filters can be used separately or combined."""
    chosen: list[tuple[dict[str, Any], list[str]]] = [
        ({"owner": "ann"}, ["1"]),
        ({"owner": "nobody"}, []),
        ({"agent_name": "helper"}, ["1", "2", "3"]),
        ({"agent_name": "other"}, ["4"]),
        ({"states": ["failed", "submitted"]}, ["1", "3", "4"]),
        ({"states": ["canceled"]}, ["2"]),
        ({"states": []}, []),
        ({"states": ["failed", "canceled"], "unfinished": True}, ["2"]),
        ({"since": 150}, ["2", "3", "4"]),
        ({"until": 200}, ["1", "3"]),
        ({"since": 150, "until": 200}, ["3"]),
        ({"owner": "bob", "agent_name": "helper", "context_id": "c", "states": ["canceled"], "since": 200}, ["2"]),
        ({"owner": "bob", "agent_name": "other"}, []),
    ]
    await _three(log)
    for options, expected in chosen:
        equal((options, ids(await log.list_runs(**options))), (options, expected))


@check(CHECKS)
async def runs_are_chosen_by_values_of_their_metadata(log: EventLog) -> None:
    """All values must match, including their JSON types."""
    chosen: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["1", "2", "3", "4"]),
        ({"tenant": "t"}, ["1"]),
        ({"tenant": "t", "n": 1}, ["1"]),
        ({"tenant": "t", "n": 2}, []),
        ({"n": True}, ["2"]),
        ({"n": "1"}, []),
        ({"none": None}, ["2"]),
        ({"missing": None}, []),
        ({"deep": {"a": "é", "b": [1, None]}}, ["1"]),
        ({"deep": {"a": "é"}}, []),
        ({"odd key.'": True}, ["1"]),
    ]
    await _three(log)
    for metadata, expected in chosen:
        equal((metadata, ids(await log.list_runs(metadata=metadata))), (metadata, expected))


def _fold(first: str, last: str, runs: int, events: int, word: bytes = b"kept") -> RunFold:
    return RunFold(first, last, runs, events, b'{"summary":1}', b'["' + word + b'"]')


async def _conversation(log: EventLog) -> None:
    for name in "abc":
        await log.append(name, [*begun(name, context_id="c"), end(3)], expected_seq=0)
    await log.append("other", [task(context_id="d")], expected_seq=0)
    await log.append("open", begun("open", context_id="c"), expected_seq=0)


async def _found(log: EventLog, *, before: str = "", version: int = 1) -> list[object]:
    """Return stored folds, and the id, completeness and number of events for other runs."""
    found = await log.read_conversation("c", before=before, version=version)
    return [
        (part.task_id, part.complete, len(part.events)) if isinstance(part, RunEvents) else part for part in found.parts
    ]


@check(CHECKS)
async def a_conversation_is_read_from_its_first_run_or_from_a_mark(log: EventLog) -> None:
    """It is also read from the first run if a run before the mark has changed."""
    await _conversation(log)
    first = await log.read_conversation("c", before="c", version=1)
    equal((_sizes(first), first.whole), ([("a", 3), ("b", 3)], True))
    equal((first.mark.runs, first.mark.events, first.mark.last), (2, 6, "b"))

    rest = await log.read_conversation("c", before="new", after=first.mark, version=1)
    equal((_sizes(rest), rest.whole), ([("c", 3), ("open", 2)], False))
    equal((rest.mark.runs, rest.mark.events, rest.mark.last), (4, 11, "open"))

    await log.append("a", [note(4)], expected_seq=3)
    changed = await log.read_conversation("c", before="new", after=first.mark, version=1)
    equal((_sizes(changed), changed.whole), ([("a", 4), ("b", 3), ("c", 3), ("open", 2)], True))

    nothing = await log.read_conversation("c", before="new", after=changed.mark, version=1)
    equal((len(nothing.parts), nothing.mark, nothing.whole), (0, changed.mark, False))
    unknown = await log.read_conversation("nowhere", before="x", version=1)
    equal((len(unknown.parts), unknown.mark.runs, unknown.whole), (0, 0, True))


def _sizes(page: ConversationPage) -> list[tuple[str, int]]:
    return [(part.task_id, len(part.events)) for part in page.parts if isinstance(part, RunEvents)]


@check(CHECKS, stores_folds=True)
async def a_fold_that_is_kept_is_given_instead_of_events(log: EventLog) -> None:
    """Folds require a matching version, and are omitted if any of their runs is excluded."""
    await _conversation(log)
    events = [("a", True, 3), ("b", True, 3), ("c", True, 3), ("open", False, 2)]
    equal(await _found(log), events)

    folds = [_fold("a", "b", 2, 6), _fold("c", "c", 1, 3)]
    log.store_folds("c", folds, version=1)
    await log.append("open", [note(3)], expected_seq=2)
    equal(await _found(log), [*folds, ("open", False, 3)])
    equal(await _found(log, before="c"), folds[:1])
    equal(await _found(log, before="b"), events[:1])
    equal(await _found(log, version=2), [*events[:3], ("open", False, 3)])

    whole = await log.read_conversation("c", before="c", version=1)
    rest = await log.read_conversation("c", before="", after=whole.mark, version=1)
    equal((whole.whole, rest.whole, rest.parts[0]), (True, False, folds[1]))
    equal((rest.mark.runs, rest.mark.events, rest.mark.last), (4, 12, "open"))


@check(CHECKS, stores_folds=True)
async def a_fold_of_runs_that_went_on_is_not_given_and_not_kept(log: EventLog) -> None:
    """Inconsistent folds are rejected. Larger folds replace the folds they include."""
    await _conversation(log)
    wrong = [_fold("a", "b", 1, 6), _fold("b", "c", 2, 7), _fold("a", "other", 2, 4), _fold("a", "nowhere", 2, 6)]
    log.store_folds("c", wrong, version=1)
    log.store_folds("c", [_fold("a", "a", 1, 3), _fold("b", "b", 1, 3)], version=1)
    wide = _fold("a", "b", 2, 6, b"wide")
    log.store_folds("c", [wide], version=1)
    await log.append("open", [note(3)], expected_seq=2)
    equal((await _found(log))[:2], [wide, ("c", True, 3)])

    await log.append("b", [note(4)], expected_seq=3)
    log.store_folds("c", [wide], version=1)
    await log.append("open", [note(4)], expected_seq=3)
    equal(await _found(log), [("a", True, 3), ("b", False, 4), ("c", True, 3), ("open", False, 4)])


@check(CHECKS)
async def a_snapshot_has_what_the_single_reads_return(log: EventLog) -> None:
    """A snapshot contains the record, events and commands, and optionally the preceding conversation."""
    with raises(UnknownRun, "run"):
        await log.snapshot("run")
    await _conversation(log)
    number = await log.send_command("open", CancelCommand())
    await log.send_command("a", CancelCommand())

    found = await log.snapshot("open", history=HistoryQuery(None, 1))
    equal((found.record, list(found.events)), (await log.get_record("open"), list(await log.read("open"))))
    equal(list(found.commands), [(number, CancelCommand())])
    equal((ids(found.waiting), found.later), (list[str](), None))
    equal(found.history, await log.read_conversation("c", before="open", version=1))
    equal((await log.snapshot("open")).history, None)


@check(CHECKS)
async def a_snapshot_since_another_one_adds_what_came_after_it(log: EventLog) -> None:
    """It includes new events, pending commands and the conversation after the mark."""
    await _conversation(log)
    first = await log.send_command("open", CancelCommand())
    known = await log.snapshot("open", history=HistoryQuery(None, 1))
    await log.append("open", [status(3, "working", metadata={"mail_id": first})], expected_seq=2)
    second = await log.send_command("open", CancelCommand(reason="again"))

    mark = known.history.mark if known.history is not None else None
    found = await log.snapshot("open", since=known, history=HistoryQuery(mark, 1))
    equal(list(found.events), list(await log.read("open")))
    equal([number for number, _ in found.new_commands], [second])
    equal((found.record.seq, found.history is not None and len(found.history.parts)), (3, 0))
    # Later snapshots only read commands that have not been applied.
    equal([number for number, _ in (await log.snapshot("open", since=found)).commands], [second])


@check(CHECKS)
async def a_snapshot_has_the_neighbours_that_decide_about_questions(log: EventLog) -> None:
    """It contains earlier waiting runs, newest first, and the first later run with any activity."""
    events = {
        "asks": [end(3, "input-required")],
        "over": [end(3)],
        "signs in": [end(3, "auth-required")],
        "run": [end(3, "input-required")],
        "cancelled": [end(3, "canceled")],
        "later": [note(3)],
        "latest": [],
    }
    for name, more in events.items():
        await log.append(name, [*begun(name, context_id="c"), *more], expected_seq=0)
    await log.append("elsewhere", [*begun("elsewhere", context_id="d"), end(3, "input-required")], expected_seq=0)
    await log.append("submitted", [task(task_id="submitted", context_id="c")], expected_seq=0)

    found = await log.snapshot("run")
    equal(ids(found.waiting), ["signs in", "asks"])
    equal(found.later, await log.get_record("later"))
    last = await log.snapshot("submitted")
    equal((ids(last.waiting), last.later), (["run", "signs in", "asks"], None))
    alone = await log.snapshot("elsewhere")
    equal((ids(alone.waiting), alone.later), (list[str](), None))
