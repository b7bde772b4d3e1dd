"""Ids that were given out lead back to their thoughts, and only a program's word leads to another owner's."""

from __future__ import annotations

import pytest

from rxloop.errors import ConfigurationError, UnknownSession
from rxloop.pipeline.seams import SessionStore
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.places import new_id
from thinking.conftest import MINUTE, FakeClock
from thinking.test_sequential_thoughts import codes, thought


async def test_an_id_that_a_program_names_goes_on_whoever_it_was_given_to(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    second = await sessions.think(thought(2), session_id=first.session_id)
    assert (second.session.owner, len(second.session), codes(second)) == ("conversation", 2, [])
    assert [record.owner for record in await store.records()] == ["conversation"]


async def test_the_repeated_call_of_such_an_id_makes_no_second_thought(store: SessionStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    results = [await sessions.think(thought(2), session_id=first.session_id, call_id="c") for _ in range(2)]
    assert [len(each.session) for each in results] == [2, 2]


async def test_a_model_that_names_the_id_of_another_owner_finds_nothing(store: SessionStore) -> None:
    # T33
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    for owner in ("bob", "", None):
        with pytest.raises(UnknownSession):
            await sessions.think(thought(2, sessionId=first.session_id), owner=owner)
    assert len((await sessions.get_session(first.session_id)).thoughts) == 1


async def test_an_id_that_was_given_to_somebody_else_is_refused_and_not_begun_anew(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    with pytest.raises(UnknownSession):
        await sessions.think(thought(2), session_id=first.session_id, owner="bob")
    assert [record.owner for record in await store.records()] == ["ann"]


async def test_a_name_that_several_owners_have_is_refused_until_one_is_named(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    for owner in ("ann", "bob"):
        await sessions.think(thought(), session_id="plan", owner=owner)
    for act in (
        sessions.think(thought(2), session_id="plan"),
        sessions.get_session("plan"),
        sessions.clear_session("plan"),
    ):
        with pytest.raises(UnknownSession, match="2 owners have a session 'plan': name one with owner="):
            await act
    assert (await sessions.get_session("plan", owner="bob")).owner == "bob"


async def test_the_program_comes_first_in_its_own_name(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="plan", owner="")
    await sessions.think(thought(), session_id="plan", owner="ann")
    assert (await sessions.get_session("plan")).owner == ""


async def test_what_is_unambiguous_is_found_without_an_owner(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    result = await sessions.think(thought(), owner="conversation")
    assert await sessions.get_session(result.session_id) == result.session
    assert await sessions.all_sessions() == [result.session]
    cleared = await sessions.clear_session(result.session_id)
    assert cleared.owner == "conversation"


async def test_an_id_that_was_given_out_and_begins_anew_says_so(store: SessionStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), session_id=new_id())
    assert codes(first) == ["session_new"]
    assert codes(await sessions.think(thought(2), session_id=first.session_id)) == []
    assert codes(await sessions.think(thought(), session_id="planner")) == []


async def test_who_names_the_old_id_of_a_bound_session_hears_that_it_was_cleared(store: SessionStore) -> None:
    # T31
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="s")
    await sessions.clear_session("s")
    assert codes(await sessions.think(thought(1, sessionId="s"), session_id="s")) == ["session_cleared"]
    assert codes(await sessions.think(thought(2), session_id="s")) == []


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "x" * 201])
async def test_an_id_is_short_and_without_control_characters(name: str) -> None:
    with pytest.raises(ConfigurationError, match="session_id="):
        await ThinkingSessions().think(thought(), session_id=name)


async def test_expired_sessions_of_all_owners_are_freed_by_later_thoughts(
    store: SessionStore, clock: FakeClock
) -> None:
    sessions = ThinkingSessions(store)
    for owner in range(50):
        await sessions.think(thought(), owner=f"conversation {owner}")
    clock.time += 30 * MINUTE + 1
    await sessions.think(thought(), owner="another")
    assert [record.owner for record in await store.records()] == ["another"]


async def test_a_session_that_was_freed_is_still_told_to_have_expired(store: SessionStore, clock: FakeClock) -> None:
    # T36
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    bound = await sessions.think(thought(), session_id="planner")
    clock.time += 30 * MINUTE + 1
    await sessions.think(thought(), owner="another")
    with pytest.raises(UnknownSession):
        await sessions.get_session(first.session_id)
    late = await sessions.think(thought(2, sessionId=first.session_id))
    assert (len(late.session), codes(late)) == (1, ["session_expired"])
    again = await sessions.think(thought(3, sessionId=first.session_id))
    assert (again.session_id, len(again.session)) == (late.session_id, 2)
    assert codes(await sessions.think(thought(2), session_id=bound.session_id)) == ["session_expired"]


async def test_of_too_many_sessions_of_all_owners_the_least_used_go(store: SessionStore, clock: FakeClock) -> None:
    sessions = ThinkingSessions(store, ttl=None, max_total=20)
    for number in range(200):
        clock.time += 1
        await sessions.think(thought(needed=number % 2 == 0), owner=f"conversation {number}")
        assert len(await store.records()) <= 21
    left = [int(record.owner.split()[1]) for record in await store.records()]
    assert 199 in left
    assert all(number % 2 == 0 for number in left if number < 180)


async def test_a_session_that_is_cleared_for_ever_leaves_no_more_than_may_stay(store: SessionStore) -> None:
    sessions = ThinkingSessions(store, max_total=20)
    for _ in range(100):
        await sessions.think(thought(clearSession=True), session_id="s")
    assert len(await store.records()) <= 21
    assert len((await sessions.think(thought(2), session_id="s")).session) == 2
