"""Sessions over each store: whose they are, how long they live, who writes them; T25 to T50."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from rxloop.errors import ConfigurationError, SessionConflict, UnknownSession
from rxloop.pipeline.seams import SessionStore
from rxloop.pipeline.values import SessionChange
from rxloop.thinking.sessions import ThinkingSessions, ThoughtResult
from thinking.conftest import MINUTE, FakeClock
from thinking.test_sequential_thoughts import codes, thought


def numbers(result: ThoughtResult) -> list[int]:
    return [each.thought_number for each in result.history]


async def test_a_thought_without_an_id_begins_a_session(store: SessionStore) -> None:
    # T25
    sessions = ThinkingSessions(store)
    ids = [(await sessions.think(thought())).session_id for _ in range(20)]
    assert all(uuid.UUID(each).version == 7 for each in ids)
    assert ids == sorted(set(ids))


async def test_the_id_of_the_first_answer_leads_back(store: SessionStore) -> None:
    # T26
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    second = await sessions.think(thought(2, sessionId=first.session_id))
    assert (second.session_id, len(second.session)) == (first.session_id, 2)


async def test_clearing_begins_another_session(store: SessionStore) -> None:
    # T28, T31
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    cleared = await sessions.think(thought(sessionId=first.session_id, clearSession=True))
    assert len(cleared.session) == 1
    assert cleared.session_id != first.session_id
    late = await sessions.think(thought(2, sessionId=first.session_id))
    assert (late.session_id, len(late.session)) == (cleared.session_id, 2)
    assert codes(late) == ["session_cleared"]


async def test_a_bound_session_begins_with_its_first_thought(store: SessionStore) -> None:
    # T29
    sessions = ThinkingSessions(store)
    results = [await sessions.think(thought(n), session_id="agent-1") for n in (1, 2, 3)]
    assert [(each.session_id, len(each.session)) for each in results] == [("agent-1", n) for n in (1, 2, 3)]


async def test_a_bound_session_that_was_cleared_goes_on_under_one_new_id(store: SessionStore) -> None:
    # T30
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="agent-1")
    results = [
        await sessions.think(thought(n, clearSession=True if n == 1 else None), session_id="agent-1") for n in (1, 2, 3)
    ]
    assert [len(each.session) for each in results] == [1, 2, 3]
    (new_id,) = {each.session_id for each in results}
    assert new_id != "agent-1"
    assert (await sessions.get_session("agent-1")).session_id == new_id
    await sessions.clear_session("agent-1")
    again = await sessions.think(thought(), session_id="agent-1")
    assert (len(again.session), codes(again)) == (1, [])


async def test_a_bound_session_that_was_never_used_has_nothing_to_clear(store: SessionStore) -> None:
    result = await ThinkingSessions(store).think(thought(clearSession=True), session_id="agent-1")
    assert result.session_id == "agent-1"


async def test_the_way_to_a_session_that_is_cleared_again_and_again_stays_short(store: SessionStore) -> None:
    # T30
    sessions = ThinkingSessions(store)
    for _ in range(6):
        await sessions.think(thought(), session_id="agent-1")
        await sessions.think(thought(clearSession=True), session_id="agent-1")
    result = await sessions.think(thought(2), session_id="agent-1")
    record = await store.load("", "agent-1")
    assert record is not None
    assert record.successor == result.session_id
    assert len(await sessions.get_session("agent-1")) == 2


async def test_an_id_that_was_made_up_is_refused(store: SessionStore) -> None:
    # T32
    sessions = ThinkingSessions(store)
    for bad in ("mine", str(uuid.uuid4())):
        with pytest.raises(UnknownSession, match="leave sessionId out") as caught:
            await sessions.think(thought(sessionId=bad))
        assert caught.value.code == "unknown_session"
    assert await sessions.all_sessions() == []


async def test_the_session_of_another_owner_does_not_exist(store: SessionStore) -> None:
    # T33
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    for act in (
        sessions.think(thought(sessionId=first.session_id), owner="bob"),
        sessions.get_session(first.session_id, owner="bob"),
        sessions.clear_session(first.session_id, owner="bob"),
    ):
        with pytest.raises(UnknownSession, match="there is no session"):
            await act
    assert (await sessions.get_session(first.session_id, owner="ann")) == first.session


async def test_agents_side_by_side_keep_to_their_own_sessions(store: SessionStore) -> None:
    # T34
    sessions = ThinkingSessions(store)

    async def agent(name: str) -> list[str]:
        for n in range(1, 21):
            await sessions.think(thought(n, 20, text=f"{name} {n}"), session_id=name)
            await asyncio.sleep(0)
        return [each.thought for each in (await sessions.get_session(name)).thoughts]

    names = ["a", "b", "c"]
    for name, thoughts in zip(names, await asyncio.gather(*map(agent, names)), strict=True):
        assert thoughts == [f"{name} {n}" for n in range(1, 21)]


async def test_a_session_in_use_never_expires(store: SessionStore, clock: FakeClock) -> None:
    # T35
    sessions = ThinkingSessions(store)
    for n in range(1, 8):
        result = await sessions.think(thought(n, 9), session_id="s")
        assert (len(result.session), codes(result)) == (n, [])
        clock.time += 20 * MINUTE


async def test_a_silent_session_expires_by_itself(store: SessionStore, clock: FakeClock) -> None:
    # T36
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    clock.time += 30 * MINUTE
    assert len((await sessions.think(thought(2, sessionId=first.session_id))).session) == 2
    clock.time += 30 * MINUTE + 1
    with pytest.raises(UnknownSession):
        await sessions.get_session(first.session_id)
    assert await sessions.all_sessions() == []
    late = await sessions.think(thought(3, sessionId=first.session_id))
    assert (len(late.session), codes(late)) == (1, ["session_expired"])
    assert late.session_id != first.session_id
    after = await sessions.think(thought(4, sessionId=first.session_id))
    assert (after.session_id, len(after.session)) == (late.session_id, 2)


async def test_a_lifetime_may_count_from_the_beginning(store: SessionStore, clock: FakeClock) -> None:
    # T37
    sessions = ThinkingSessions(store, ttl_from="created")
    for n in (1, 2):
        await sessions.think(thought(n), session_id="s")
        clock.time += 20 * MINUTE
    assert codes(await sessions.think(thought(3), session_id="s")) == ["session_expired"]


async def test_a_rejected_thought_and_a_look_do_not_prolong_a_session(store: SessionStore, clock: FakeClock) -> None:
    # T14
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="s")
    clock.time += 29 * MINUTE
    with pytest.raises(ValueError, match="thoughtNumber"):
        await sessions.think(thought(0), session_id="s")
    await sessions.get_session("s")
    clock.time += 2 * MINUTE
    assert codes(await sessions.think(thought(2), session_id="s")) == ["session_expired"]


async def test_sessions_may_live_for_ever(store: SessionStore, clock: FakeClock) -> None:
    sessions = ThinkingSessions(store, ttl=None)
    await sessions.think(thought(), session_id="s")
    clock.time += 10_000 * MINUTE
    assert len((await sessions.think(thought(2), session_id="s")).session) == 2
    assert await sessions.sweep() == 0


def test_no_timer_keeps_a_process(tmp_path: Path) -> None:
    # T38
    program = (
        "import asyncio\n"
        "from rxloop import ThinkingSessions, SqliteSessionStore\n"
        "async def main():\n"
        "    for sessions in (ThinkingSessions(), ThinkingSessions(SqliteSessionStore('s.db'))):\n"
        "        thought = {'thought': 'x', 'thoughtNumber': 1, 'totalThoughts': 2, 'nextThoughtNeeded': True}\n"
        "        await sessions.think(thought)\n"
        "asyncio.run(main(), debug=True)\n"
    )
    command = [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", program]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Task was destroyed" not in ended.stderr
    assert "never awaited" not in ended.stderr


async def test_a_sweep_removes_what_has_expired_and_what_led_there(store: SessionStore, clock: FakeClock) -> None:
    # T39
    sessions = ThinkingSessions(store)
    old = await sessions.think(thought(), owner="ann")
    await sessions.clear_session(old.session_id, owner="ann")
    clock.time += 20 * MINUTE
    live = await sessions.think(thought(), owner="ann")
    moved = await sessions.clear_session(live.session_id, owner="ann")
    clock.time += 15 * MINUTE
    assert await sessions.sweep() == 2
    assert {each.session_id for each in await store.records()} == {live.session_id, moved.session_id}
    assert (await sessions.get_session(live.session_id, owner="ann")).session_id == moved.session_id
    assert await sessions.sweep() == 0


async def test_a_repeated_call_gets_the_first_answer_again(store: SessionStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(1), call_id="c1")
    second = await sessions.think(thought(5, 9, sessionId=first.session_id), call_id="c2")
    await sessions.think(thought(6, 9, sessionId=first.session_id), call_id="c3")
    for call_id, result in (("c1", first), ("c2", second)):
        again = await sessions.think(thought(1, sessionId="whatever"), call_id=call_id)
        assert (again.to_json(), again.to_text(500)) == (result.to_json(), result.to_text(500))
    assert len(await sessions.get_session(first.session_id)) == 3
    assert len(await sessions.all_sessions()) == 1


async def test_a_repeated_call_does_not_clear_again(store: SessionStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    await sessions.think(thought(1), session_id="s", call_id="c1")
    cleared = await sessions.think(thought(1, clearSession=True), session_id="s", call_id="c2")
    await sessions.think(thought(2), session_id="s", call_id="c3")
    again = await sessions.think(thought(1, clearSession=True), session_id="s", call_id="c2")
    assert again.to_json() == cleared.to_json()
    assert len(await sessions.get_session("s")) == 2


async def test_parallel_thoughts_keep_their_order(store: SessionStore) -> None:
    # T45
    sessions = ThinkingSessions(store)
    results = await asyncio.gather(*(sessions.think(thought(n, 30), session_id="s") for n in range(1, 31)))
    assert [each.placed.place for each in results] == list(range(1, 31))
    assert numbers(results[-1]) == list(range(1, 31))


async def test_two_writers_lose_and_double_nothing(store: SessionStore) -> None:
    # T43
    writers = [ThinkingSessions(store), ThinkingSessions(store)]

    async def write(sessions: ThinkingSessions, name: str) -> None:
        for n in range(1, 21):
            await sessions.think(thought(n, 20, text=f"{name}{n}"), session_id="s")
            await asyncio.sleep(0)

    await asyncio.gather(write(writers[0], "a"), write(writers[1], "b"))
    said = [each.thought for each in (await writers[0].get_session("s")).thoughts]
    assert sorted(said) == sorted(f"{name}{n}" for name in "ab" for n in range(1, 21))
    for name in "ab":
        assert [each for each in said if each[0] == name] == [f"{name}{n}" for n in range(1, 21)]


async def test_a_change_on_an_older_version_is_a_conflict_and_changes_nothing(store: SessionStore) -> None:
    # T43
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), session_id="s")
    record = await store.load("", "s")
    assert record is not None
    with pytest.raises(SessionConflict, match="version 1"):
        await store.commit([SessionChange(record, (b"{}",), "c")])
    assert await store.load("", "s") == record
    assert await store.of_call("", "c") is None
    assert (await sessions.get_session("s")).thoughts == first.session.thoughts


async def test_several_changes_are_made_together_or_not_at_all(store: SessionStore) -> None:
    # T42
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="a")
    record = await store.load("", "a")
    assert record is not None
    good = SessionChange(type(record)("", "new", 1, 0, 0, 0))
    with pytest.raises(SessionConflict):
        await store.commit([good, SessionChange(record)])
    assert await store.load("", "new") is None


async def test_of_too_many_sessions_the_oldest_complete_one_goes(store: SessionStore, clock: FakeClock) -> None:
    # T48
    sessions = ThinkingSessions(store, max_sessions=3)
    for name, needed in (("open", True), ("done", False), ("done later", False)):
        await sessions.think(thought(needed=needed), session_id=name)
        clock.time += 1
    await sessions.think(thought(), session_id="other", owner="bob")

    async def left() -> list[str]:
        return [each.session_id for each in await sessions.all_sessions(owner="")]

    await sessions.think(thought(), session_id="4th")
    assert await left() == ["open", "done later", "4th"]
    clock.time += 1
    await sessions.think(thought(), session_id="5th")
    assert await left() == ["open", "4th", "5th"]
    clock.time += 1
    await sessions.think(thought(), session_id="6th")
    assert await left() == ["4th", "5th", "6th"]
    assert len(await sessions.all_sessions(owner="bob")) == 1


async def test_clearing_all_leaves_other_owners_alone(store: SessionStore) -> None:
    # T49
    sessions = ThinkingSessions(store)
    for owner in ("ann", "ann", "bob"):
        await sessions.think(thought(), owner=owner)
    assert await sessions.clear_all_sessions(owner="ann") == 2
    assert await sessions.all_sessions(owner="ann") == []
    assert len(await sessions.all_sessions(owner="bob")) == 1


async def test_a_session_is_a_value_that_nobody_can_change(store: SessionStore) -> None:
    # T50
    sessions = ThinkingSessions(store)
    await sessions.think(thought(2, branchFromThought=1, branchId="b"), session_id="s")
    session = await sessions.get_session("s")
    session.branches.clear()
    with pytest.raises(FrozenInstanceError):
        session.owner = "bob"  # pyright: ignore[reportAttributeAccessIssue]
    await sessions.think(thought(3), session_id="s")
    assert len(session) == 1
    assert list((await sessions.get_session("s")).branches) == ["b"]


async def test_a_thousand_sessions_at_once(store: SessionStore) -> None:
    sessions = ThinkingSessions(store, max_sessions=1_000)

    async def use(number: int) -> int:
        for n in (1, 2, 3):
            result = await sessions.think(
                thought(n, text=f"{number}.{n}"), session_id=f"s{number}", owner=f"o{number % 7}"
            )
        return len(result.session)

    assert await asyncio.gather(*map(use, range(1_000))) == [3] * 1_000
    kept = [each for owner in range(7) for each in await sessions.all_sessions(owner=f"o{owner}")]
    assert all([t.thought for t in each.thoughts] == [f"{each.session_id[1:]}.{n}" for n in (1, 2, 3)] for each in kept)


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl_from": "never"}, {"max_sessions": 0}, {"max_thoughts": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        ThinkingSessions(**options)
