"""What runs add to their conversation, for a log that keeps it beside the events."""

from __future__ import annotations

from typing import Protocol

from rxloop.pipeline.logs import EventLog, KeepsFolds
from rxloop.pipeline.values import KeptFold, RunEvents
from rxloop.testing.event_log_contract._tools import Check, begun, check, end, equal, note, task

CHECKS: list[Check] = []


class _Log(EventLog, KeepsFolds, Protocol):
    """A log with all of it; a check needs no more than it says."""


def _fold(first: str, last: str, runs: int, events: int, word: bytes = b"kept") -> KeptFold:
    return KeptFold(first, last, runs, events, b'{"summary":1}', b'["' + word + b'"]')


async def _conversation(log: EventLog) -> None:
    for name in "abc":
        await log.append(name, [*begun(name, context_id="c"), end(3)], expected_seq=0)
    await log.append("other", [task(context_id="d")], expected_seq=0)
    await log.append("open", begun("open", context_id="c"), expected_seq=0)


async def _found(log: KeepsFolds, *, before: str = "", version: int = 1) -> list[object]:
    """The folds as they are, and of the other runs the ids, whether they are complete, and the events."""
    found = await log.parts("c", before=before, version=version)
    return [
        (part.task_id, part.complete, len(part.events)) if isinstance(part, RunEvents) else part for part in found.parts
    ]


@check(CHECKS, KeepsFolds)
async def a_fold_that_is_kept_is_given_instead_of_events(log: _Log) -> None:
    """To those who understand its version, and where all of its runs come before."""
    await _conversation(log)
    events = [("a", True, 3), ("b", True, 3), ("c", True, 3), ("open", False, 2)]
    equal(await _found(log), events)

    folds = [_fold("a", "b", 2, 6), _fold("c", "c", 1, 3)]
    log.keep_folds("c", folds, version=1)
    await log.append("open", [note(3)], expected_seq=2)
    equal(await _found(log), [*folds, ("open", False, 3)])
    equal(await _found(log, before="c"), folds[:1])
    equal(await _found(log, before="b"), events[:1])
    equal(await _found(log, version=2), [*events[:3], ("open", False, 3)])

    whole = await log.parts("c", before="c", version=1)
    rest = await log.parts("c", before="", after=whole.mark, version=1)
    equal((whole.whole, rest.whole, rest.parts[0]), (True, False, folds[1]))
    equal((rest.mark.runs, rest.mark.events, rest.mark.last), (4, 12, "open"))


@check(CHECKS, KeepsFolds)
async def a_fold_of_runs_that_went_on_is_not_given_and_not_kept(log: _Log) -> None:
    """Neither is one that says something else of its runs than the log; a wider one takes the place of those in it."""
    await _conversation(log)
    wrong = [_fold("a", "b", 1, 6), _fold("b", "c", 2, 7), _fold("a", "other", 2, 4), _fold("a", "nowhere", 2, 6)]
    log.keep_folds("c", wrong, version=1)
    log.keep_folds("c", [_fold("a", "a", 1, 3), _fold("b", "b", 1, 3)], version=1)
    wide = _fold("a", "b", 2, 6, b"wide")
    log.keep_folds("c", [wide], version=1)
    await log.append("open", [note(3)], expected_seq=2)
    equal((await _found(log))[:2], [wide, ("c", True, 3)])

    await log.append("b", [note(4)], expected_seq=3)
    log.keep_folds("c", [wide], version=1)
    await log.append("open", [note(4)], expected_seq=3)
    equal(await _found(log), [("a", True, 3), ("b", False, 4), ("c", True, 3), ("open", False, 4)])
