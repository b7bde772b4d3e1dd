"""What a log tells of its runs without their events."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.pipeline.logs import EventLog
from rxloop.testing.event_log_contract._tools import (
    Check,
    begun,
    check,
    end,
    equal,
    ids,
    note,
    raises,
    task,
)

CHECKS: list[Check] = []


@check(CHECKS)
async def a_record_is_found_by_the_id_of_its_run(log: EventLog) -> None:
    """It is the one that `runs` lists."""
    with raises(UnknownRun, "run"):
        await log.record("run")
    await log.append("other", begun("other"), expected_seq=0)
    await log.append("run", begun(metadata={"a": 1}), expected_seq=0)
    for seq in (3, 4):
        await log.append("run", [note(seq)], expected_seq=seq - 1)
        equal(await log.record("run"), (await log.runs())[-1])
    equal((await log.record("run")).seq, 4)


@check(CHECKS)
async def runs_are_listed_page_by_page(log: EventLog) -> None:
    """The last one of a page is where the next one begins, whatever came or ended meanwhile."""
    for name in "abcde":
        await log.append(name, begun(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    equal(ids(await log.runs(limit=2)), ["a", "b"])
    await log.append("b", [end(3)], expected_seq=2)
    equal(ids(await log.runs(after="b", limit=2)), ["c", "d"])
    equal(ids(await log.runs(after="d", limit=2)), ["e"])
    equal(ids(await log.runs(after="e", limit=2)), [])
    equal(ids(await log.runs(after="b")), ["c", "d", "e"])
    equal(ids(await log.runs(context_id="c", after="b", limit=1)), ["c"])
    equal(ids(await log.runs(unfinished=True, after="a", limit=2)), ["c", "d"])
    with raises(UnknownRun, "nowhere"):
        await log.runs(after="nowhere")
    with raises(ConfigurationError, "limit=0"):
        await log.runs(limit=0)


@check(CHECKS)
async def runs_are_listed_newest_first(log: EventLog) -> None:
    """Page by page as well; what comes meanwhile belongs before the first page."""
    for name in "abcde":
        await log.append(name, begun(name, context_id="c" if name in "ace" else "d"), expected_seq=0)

    equal(ids(await log.runs(newest_first=True)), ["e", "d", "c", "b", "a"])
    equal(ids(await log.runs(newest_first=True, limit=2)), ["e", "d"])
    await log.append("f", begun("f", context_id="c"), expected_seq=0)
    equal(ids(await log.runs(newest_first=True, after="d", limit=2)), ["c", "b"])
    equal(ids(await log.runs(newest_first=True, context_id="c", after="c")), ["a"])
    equal(ids(await log.runs(newest_first=True, after="a")), [])
    with raises(UnknownRun, "nowhere"):
        await log.runs(newest_first=True, after="nowhere")


@check(CHECKS)
async def conversations_are_listed_by_their_latest_runs(log: EventLog) -> None:
    """One run of each: the newest of those that are chosen, on whatever page."""
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

    equal(ids(await log.runs(latest_only=True)), ["d", "e", "f"])
    equal(ids(await log.runs(latest_only=True, newest_first=True)), ["f", "e", "d"])
    equal(ids(await log.runs(latest_only=True, newest_first=True, limit=1)), ["f"])
    # Not c, the next one of the first page's conversation.
    equal(ids(await log.runs(latest_only=True, newest_first=True, after="f", limit=2)), ["e", "d"])
    equal(ids(await log.runs(latest_only=True, after="d")), ["e", "f"])
    equal(ids(await log.runs(latest_only=True, owner="ann", newest_first=True)), ["d", "c"])
    equal(ids(await log.runs(latest_only=True, owner="bob")), ["b", "f"])
    equal(ids(await log.runs(latest_only=True, states=["submitted"])), ["e", "f"])
    equal(ids(await log.runs(latest_only=True, metadata={"name": "a"})), ["a"])
    equal(ids(await log.runs(latest_only=True, context_id="2")), ["e"])


async def _three(log: EventLog) -> None:
    """Three runs that differ in everything that runs are chosen by."""
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
    """By each part of it, and by several parts at once."""
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
        equal((options, ids(await log.runs(**options))), (options, expected))


@check(CHECKS)
async def runs_are_chosen_by_values_of_their_metadata(log: EventLog) -> None:
    """All of them have to be there, with the type that they have in JSON."""
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
        equal((metadata, ids(await log.runs(metadata=metadata))), (metadata, expected))
