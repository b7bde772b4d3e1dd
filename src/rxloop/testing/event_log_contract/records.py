"""Checks for run records and stored folds."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import ConversationPage, HistoryQuery, RunEvents
from rxloop.protocol.commands import CancelCommand
from rxloop.protocol.ids import make_conversation_key
from rxloop.state.run_state import RunFold
from rxloop.testing.event_log_contract.toolkit import (
    Check,
    assert_equal,
    check,
    end,
    ids,
    note,
    raises,
    start_events,
    status,
    task,
)

CHECKS: list[Check] = []


@check(CHECKS)
async def get_record_returns_the_record_of_a_run(log: EventLog) -> None:
    """`get_record` and `list_runs` return equal records."""
    with raises(UnknownRun, "run"):
        await log.get_record("run")
    await log.append("other", start_events("other"), expected_seq=0)
    await log.append("run", start_events(metadata={"a": 1}), expected_seq=0)
    for seq in (3, 4):
        await log.append("run", [note(seq)], expected_seq=seq - 1)
        assert_equal(await log.get_record("run"), (await log.list_runs())[-1])
    assert_equal((await log.get_record("run")).seq, 4)


@check(CHECKS)
async def list_runs_returns_pages(log: EventLog) -> None:
    """Cursors remain valid if runs are added or change their state."""
    for name in "abcde":
        await log.append(name, start_events(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    assert_equal(ids(await log.list_runs(limit=2)), ["a", "b"])
    await log.append("b", [end(3)], expected_seq=2)
    assert_equal(ids(await log.list_runs(after="b", limit=2)), ["c", "d"])
    assert_equal(ids(await log.list_runs(after="d", limit=2)), ["e"])
    assert_equal(ids(await log.list_runs(after="e", limit=2)), [])
    assert_equal(ids(await log.list_runs(after="b")), ["c", "d", "e"])
    assert_equal(ids(await log.list_runs(context_id="c", after="b", limit=1)), ["c"])
    assert_equal(ids(await log.list_runs(unfinished=True, after="a", limit=2)), ["c", "d"])
    with raises(UnknownRun, "nowhere"):
        await log.list_runs(after="nowhere")
    with raises(ConfigurationError, "limit=0"):
        await log.list_runs(limit=0)


@check(CHECKS)
async def count_runs_returns_the_number_of_runs_in_a_state(log: EventLog) -> None:
    """`count_runs` counts runs by their current state."""
    assert_equal(await log.count_runs("working"), 0)
    for name in ("a", "b", "c"):
        await log.append(name, start_events(name), expected_seq=0)
    await log.append("c", [end(3, task_id="c")], expected_seq=2)
    await log.append("d", [task(task_id="d")], expected_seq=0)
    assert_equal([await log.count_runs(state) for state in ("submitted", "working", "completed")], [1, 2, 1])


@check(CHECKS)
async def list_runs_returns_newest_runs_first(log: EventLog) -> None:
    """Check that new runs do not affect later pages."""
    for name in "abcde":
        await log.append(name, start_events(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    assert_equal(ids(await log.list_runs(newest_first=True)), ["e", "d", "c", "b", "a"])
    assert_equal(ids(await log.list_runs(newest_first=True, limit=2)), ["e", "d"])
    await log.append("f", start_events("f", context_id="c"), expected_seq=0)
    assert_equal(ids(await log.list_runs(newest_first=True, after="d", limit=2)), ["c", "b"])
    assert_equal(ids(await log.list_runs(newest_first=True, context_id="c", after="c")), ["a"])
    assert_equal(ids(await log.list_runs(newest_first=True, after="a")), [])
    with raises(UnknownRun, "nowhere"):
        await log.list_runs(newest_first=True, after="nowhere")


@check(CHECKS)
async def list_runs_returns_the_latest_run_of_each_conversation(log: EventLog) -> None:
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

    assert_equal(ids(await log.list_runs(latest_only=True)), ["b", "c", "d", "e", "f"])
    assert_equal(ids(await log.list_runs(latest_only=True, newest_first=True)), ["f", "e", "d", "c", "b"])
    assert_equal(ids(await log.list_runs(latest_only=True, newest_first=True, limit=1)), ["f"])
    # Run a is skipped because its conversation is on the first page.
    assert_equal(ids(await log.list_runs(latest_only=True, newest_first=True, after="d")), ["c", "b"])
    assert_equal(ids(await log.list_runs(latest_only=True, after="d")), ["e", "f"])
    assert_equal(ids(await log.list_runs(latest_only=True, owner="ann", newest_first=True)), ["d", "c"])
    assert_equal(ids(await log.list_runs(latest_only=True, owner="bob")), ["b", "f"])
    assert_equal(ids(await log.list_runs(latest_only=True, states=["submitted"])), ["b", "c", "e", "f"])
    assert_equal(ids(await log.list_runs(latest_only=True, metadata={"name": "a"})), ["a"])
    assert_equal(ids(await log.list_runs(latest_only=True, context_id="2")), ["b", "e"])


@check(CHECKS)
async def conversations_of_owners_are_separate(log: EventLog) -> None:
    """Check that each owner of a conversation id, and no owner, has a separate conversation."""
    runs = {"a": "ann", "b": "bob", "c": None, "d": "ann", "e": ""}
    for name, owner in runs.items():
        first = task(task_id=name, owner=owner, context_id="c")
        waiting = end(2, "input-required", task_id=name, context_id="c")
        await log.append(name, [first, waiting], expected_seq=0)
    for owner, own in (("ann", ["a", "d"]), ("bob", ["b"]), (None, ["c", "e"])):
        key = make_conversation_key("c", owner)
        assert_equal({(await log.get_record(name)).conversation for name in own}, {key})
        assert_equal(ids(await log.list_conversation(key)), own)
        assert_equal(ids(await log.list_conversation(key, newest_first=True, limit=1)), own[-1:])
        assert_equal(ids(await log.list_conversation(key, after=own[0], limit=1)), own[1:])
        page = await log.read_conversation(key, before="", version=1)
        assert_equal([part.task_id for part in page.parts if isinstance(part, RunEvents)], own)
        snapshot = await log.snapshot(own[0], history=HistoryQuery(None, 1))
        assert_equal(ids(snapshot.waiting), [])
        assert_equal(ids([snapshot.later] if snapshot.later else []), own[1:])
        snapshot = await log.snapshot(own[-1], history=HistoryQuery(None, 1))
        assert_equal((ids(snapshot.waiting), snapshot.later), (own[:-1], None))
        assert snapshot.history is not None
        assert_equal(snapshot.history.mark.runs, len(own) - 1)


async def _create_runs(log: EventLog) -> None:
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
async def list_runs_filters_by_record_fields(log: EventLog) -> None:
    """Check single and combined filters."""
    cases: list[tuple[dict[str, Any], list[str]]] = [
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
    await _create_runs(log)
    for options, expected in cases:
        assert_equal((options, ids(await log.list_runs(**options))), (options, expected))


@check(CHECKS)
async def list_runs_filters_by_metadata(log: EventLog) -> None:
    """All values must match, including their JSON types."""
    cases: list[tuple[dict[str, Any], list[str]]] = [
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
    await _create_runs(log)
    for metadata, expected in cases:
        assert_equal((metadata, ids(await log.list_runs(metadata=metadata))), (metadata, expected))


def _make_fold(first: str, last: str, runs: int, events: int, word: bytes = b"kept") -> RunFold:
    return RunFold(first, last, runs, events, b'{"summary":1}', b'["' + word + b'"]')


async def _create_conversation(log: EventLog) -> None:
    for name in "abc":
        await log.append(name, [*start_events(name, context_id="c"), end(3)], expected_seq=0)
    await log.append("other", [task(context_id="d")], expected_seq=0)
    await log.append("open", start_events("open", context_id="c"), expected_seq=0)


async def _read_parts(log: EventLog, *, before: str = "", version: int = 1) -> list[object]:
    """Return stored folds, and the id, completeness and number of events for other runs."""
    found = await log.read_conversation("c", before=before, version=version)
    return [
        (part.task_id, part.complete, len(part.events)) if isinstance(part, RunEvents) else part for part in found.parts
    ]


@check(CHECKS)
async def read_conversation_starts_at_the_first_run_or_a_mark(log: EventLog) -> None:
    """Check that a changed run before the mark makes the log return all runs."""
    await _create_conversation(log)
    first = await log.read_conversation("c", before="c", version=1)
    assert_equal((_count_events(first), first.from_start), ([("a", 3), ("b", 3)], True))
    assert_equal((first.mark.runs, first.mark.events, first.mark.last), (2, 6, "b"))

    rest = await log.read_conversation("c", before="new", after=first.mark, version=1)
    assert_equal((_count_events(rest), rest.from_start), ([("c", 3), ("open", 2)], False))
    assert_equal((rest.mark.runs, rest.mark.events, rest.mark.last), (4, 11, "open"))

    await log.append("a", [note(4)], expected_seq=3)
    changed = await log.read_conversation("c", before="new", after=first.mark, version=1)
    assert_equal((_count_events(changed), changed.from_start), ([("a", 4), ("b", 3), ("c", 3), ("open", 2)], True))

    nothing = await log.read_conversation("c", before="new", after=changed.mark, version=1)
    assert_equal((len(nothing.parts), nothing.mark, nothing.from_start), (0, changed.mark, False))
    unknown = await log.read_conversation("nowhere", before="x", version=1)
    assert_equal((len(unknown.parts), unknown.mark.runs, unknown.from_start), (0, 0, True))


def _count_events(page: ConversationPage) -> list[tuple[str, int]]:
    return [(part.task_id, len(part.events)) for part in page.parts if isinstance(part, RunEvents)]


@check(CHECKS, stores_folds=True)
async def read_conversation_returns_stored_folds(log: EventLog) -> None:
    """Folds require a matching version, and are omitted if any of their runs is excluded."""
    await _create_conversation(log)
    events = [("a", True, 3), ("b", True, 3), ("c", True, 3), ("open", False, 2)]
    assert_equal(await _read_parts(log), events)

    folds = [_make_fold("a", "b", 2, 6), _make_fold("c", "c", 1, 3)]
    log.store_folds("c", folds, version=1)
    await log.append("open", [note(3)], expected_seq=2)
    assert_equal(await _read_parts(log), [*folds, ("open", False, 3)])
    assert_equal(await _read_parts(log, before="c"), folds[:1])
    assert_equal(await _read_parts(log, before="b"), events[:1])
    assert_equal(await _read_parts(log, version=2), [*events[:3], ("open", False, 3)])

    page = await log.read_conversation("c", before="c", version=1)
    rest = await log.read_conversation("c", before="", after=page.mark, version=1)
    assert_equal((page.from_start, rest.from_start, rest.parts[0]), (True, False, folds[1]))
    assert_equal((rest.mark.runs, rest.mark.events, rest.mark.last), (4, 12, "open"))


@check(CHECKS, stores_folds=True)
async def read_conversation_rejects_inconsistent_folds(log: EventLog) -> None:
    """Inconsistent folds are rejected. Larger folds replace the folds they include."""
    await _create_conversation(log)
    spans = [("a", "b", 1, 6), ("b", "c", 2, 7), ("a", "other", 2, 4), ("a", "nowhere", 2, 6)]
    log.store_folds("c", [_make_fold(*span) for span in spans], version=1)
    log.store_folds("c", [_make_fold("a", "a", 1, 3), _make_fold("b", "b", 1, 3)], version=1)
    wide = _make_fold("a", "b", 2, 6, b"wide")
    log.store_folds("c", [wide], version=1)
    await log.append("open", [note(3)], expected_seq=2)
    assert_equal((await _read_parts(log))[:2], [wide, ("c", True, 3)])

    await log.append("b", [note(4)], expected_seq=3)
    log.store_folds("c", [wide], version=1)
    await log.append("open", [note(4)], expected_seq=3)
    assert_equal(await _read_parts(log), [("a", True, 3), ("b", False, 4), ("c", True, 3), ("open", False, 4)])


@check(CHECKS)
async def snapshot_equals_single_reads(log: EventLog) -> None:
    """Compare a snapshot with the results of separate calls."""
    with raises(UnknownRun, "run"):
        await log.snapshot("run")
    await _create_conversation(log)
    number = await log.send_command("open", CancelCommand())
    await log.send_command("a", CancelCommand())

    found = await log.snapshot("open", history=HistoryQuery(None, 1))
    assert_equal((found.record, list(found.events)), (await log.get_record("open"), list(await log.read("open"))))
    assert_equal(list(found.commands), [(number, CancelCommand())])
    assert_equal((ids(found.waiting), found.later), (list[str](), None))
    assert_equal(found.history, await log.read_conversation("c", before="open", version=1))
    assert_equal((await log.snapshot("open")).history, None)


@check(CHECKS)
async def snapshot_adds_changes_since_an_earlier_snapshot(log: EventLog) -> None:
    """Check new events, pending commands and the conversation after the mark."""
    await _create_conversation(log)
    first = await log.send_command("open", CancelCommand())
    known = await log.snapshot("open", history=HistoryQuery(None, 1))
    await log.append("open", [status(3, "working", metadata={"command_id": first})], expected_seq=2)
    second = await log.send_command("open", CancelCommand(reason="again"))

    mark = known.history.mark if known.history is not None else None
    found = await log.snapshot("open", since=known, history=HistoryQuery(mark, 1))
    assert_equal(list(found.events), list(await log.read("open")))
    assert_equal([number for number, _ in found.new_commands], [second])
    assert_equal((found.record.seq, found.history is not None and len(found.history.parts)), (3, 0))
    # Later snapshots only read commands that have not been applied.
    assert_equal([number for number, _ in (await log.snapshot("open", since=found)).commands], [second])


@check(CHECKS)
async def snapshot_includes_neighbouring_runs(log: EventLog) -> None:
    """Check the earlier waiting runs, newest first, and the first later run that has started."""
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
        await log.append(name, [*start_events(name, context_id="c"), *more], expected_seq=0)
    waiting = [*start_events("elsewhere", context_id="d"), end(3, "input-required")]
    await log.append("elsewhere", waiting, expected_seq=0)
    await log.append("submitted", [task(task_id="submitted", context_id="c")], expected_seq=0)

    found = await log.snapshot("run")
    assert_equal(ids(found.waiting), ["signs in", "asks"])
    assert_equal(found.later, await log.get_record("later"))
    last = await log.snapshot("submitted")
    assert_equal((ids(last.waiting), last.later), (["run", "signs in", "asks"], None))
    alone = await log.snapshot("elsewhere")
    assert_equal((ids(alone.waiting), alone.later), (list[str](), None))
