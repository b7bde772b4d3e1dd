"""What a sweep removes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rxloop.pipeline.values import SessionRecord
from rxloop.thinking.sessions.places import is_open

Key = tuple[str, str]
Ends = dict[Key, SessionRecord | None]
"""The session that each record leads to, which is itself if it is open; None if there is none."""


def to_remove(
    records: Sequence[SessionRecord], is_expired: Callable[[SessionRecord], bool], most: int
) -> list[SessionRecord]:
    """Choose what a sweep removes: what has expired, what leads to nothing else, and what is too much.

    Args:
        records: All that a store has.
        is_expired: Whether the lifetime of a session is over.
        most: How many may stay. Where there are more, a tenth goes as well, so that the next sweep is a while away:
            complete sessions before the others, the least recently used first, each after what leads to it.
    """
    by_key = {(record.owner, record.session_id): record for record in records}
    ends: Ends = {}
    for key in by_key:
        _find_end(key, by_key, ends)
    gone: list[SessionRecord] = []
    kept: list[tuple[SessionRecord, SessionRecord]] = []
    for key, record in by_key.items():
        end = ends[key]
        if end is None or is_expired(end):
            gone.append(record)
        else:
            kept.append((end, record))
    if len(kept) > most:
        kept.sort(key=lambda pair: (pair[0].state != "complete", pair[0].used, is_open(pair[1]), pair[1].used))
        gone += [record for _, record in kept[: len(kept) - most + most // 10]]
    return gone


def _find_end(key: Key, records: dict[Key, SessionRecord], ends: Ends) -> None:
    """Note where a record leads to, and likewise all records on the way."""
    line: list[Key] = []
    end = None
    while key in records:
        if key in ends:
            end = ends[key]
            break
        line.append(key)
        # Until more is known; in a circle nothing ever is.
        ends[key] = None
        record = records[key]
        if is_open(record):
            end = record
            break
        key = (record.owner, record.successor or "")
    for passed in line:
        ends[passed] = end
