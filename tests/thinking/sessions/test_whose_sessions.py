"""Ids that were given out lead back to their thoughts, and only a program's word leads to another owner's."""

from __future__ import annotations

import pytest

from rxloop.errors import ConfigurationError, UnknownSession
from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.storage import MemoryArtifacts
from rxloop.thinking import ThinkingSessions
from rxloop.thinking.sessions.session_artifacts import CONTEXT, Head, new_id
from support.fake_clock import MINUTE, FakeClock
from support.sequential_thoughts import codes, thought


async def owners(store: ArtifactStore) -> list[str]:
    """Return the owner of each session in a store."""
    return sorted(head.owner for record in await store.list(CONTEXT) if (head := Head.of(record)) is not None)


async def test_an_id_that_a_program_names_goes_on_whoever_it_was_given_to(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    second = await sessions.think(thought(2), session_id=first.session_id)
    assert (second.session.owner, len(second.session), codes(second)) == ("conversation", 2, [])
    assert await owners(store) == ["conversation"]


async def test_the_repeated_call_of_such_an_id_makes_no_second_thought(store: ArtifactStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    results = [await sessions.think(thought(2), session_id=first.session_id, call_id="c") for _ in range(2)]
    assert [len(each.session) for each in results] == [2, 2]


async def test_a_model_that_names_the_id_of_another_owner_finds_nothing(store: ArtifactStore) -> None:
    # T33
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    for owner in ("bob", "", None):
        with pytest.raises(UnknownSession):
            await sessions.think(thought(2, sessionId=first.session_id), owner=owner)
    assert len((await sessions.get_session(first.session_id)).thoughts) == 1


async def test_an_id_that_was_given_to_somebody_else_is_refused_and_not_begun_anew(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    with pytest.raises(UnknownSession):
        await sessions.think(thought(2), session_id=first.session_id, owner="bob")
    assert await owners(store) == ["ann"]


async def test_each_owner_may_have_a_session_of_a_name(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    for owner in ("ann", "bob"):
        await sessions.think(thought(), session_id="plan", owner=owner)
    for act in (sessions.get_session("plan"), sessions.clear_session("plan")):
        with pytest.raises(UnknownSession, match="there is no session 'plan'"):
            await act
    own = await sessions.think(thought(), session_id="plan")
    assert (own.session.owner, len(own.session), codes(own)) == ("", 1, [])
    assert (await sessions.get_session("plan", owner="bob")).owner == "bob"
    assert await owners(store) == ["", "ann", "bob"]


async def test_the_program_comes_first_in_its_own_name(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="plan", owner="")
    await sessions.think(thought(), session_id="plan", owner="ann")
    assert (await sessions.get_session("plan")).owner == ""


async def test_what_is_unambiguous_is_found_without_an_owner(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    result = await sessions.think(thought(), owner="conversation")
    assert await sessions.get_session(result.session_id) == result.session
    assert await sessions.all_sessions() == [result.session]
    cleared = await sessions.clear_session(result.session_id)
    assert cleared.owner == "conversation"


async def test_an_id_that_was_given_out_and_begins_anew_says_so(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), session_id=new_id())
    assert codes(first) == ["session_new"]
    assert codes(await sessions.think(thought(2), session_id=first.session_id)) == []
    assert codes(await sessions.think(thought(), session_id="planner")) == []


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "x" * 201])
async def test_an_id_is_short_and_without_control_characters(name: str) -> None:
    with pytest.raises(ConfigurationError, match="session_id="):
        await ThinkingSessions(MemoryArtifacts()).think(thought(), session_id=name)


async def test_expired_sessions_of_all_owners_are_freed_by_later_thoughts(
    store: ArtifactStore, clock: FakeClock
) -> None:
    sessions = ThinkingSessions(store)
    for owner in range(50):
        await sessions.think(thought(), owner=f"conversation {owner}")
    clock.time += 30 * MINUTE + 1
    await sessions.think(thought(), owner="another")
    assert await owners(store) == ["another"]


async def test_a_session_that_was_freed_is_still_told_to_have_expired(store: ArtifactStore, clock: FakeClock) -> None:
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


async def test_of_too_many_sessions_of_all_owners_the_least_used_go(store: ArtifactStore, clock: FakeClock) -> None:
    sessions = ThinkingSessions(store, ttl=None, max_total=20)
    for number in range(200):
        clock.time += 1
        await sessions.think(thought(needed=number % 2 == 0), owner=f"conversation {number}")
        assert len(await owners(store)) <= 21
    left = [int(owner.split()[1]) for owner in await owners(store)]
    assert 199 in left
    assert all(number % 2 == 0 for number in left if number < 180)


async def test_a_session_that_is_cleared_for_ever_is_one_artifact(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store, max_total=20)
    for _ in range(100):
        await sessions.think(thought(clearSession=True), session_id="s")
    assert len(await store.list(CONTEXT)) == 1
    assert len((await sessions.think(thought(2), session_id="s")).session) == 2


async def test_other_artifacts_beside_the_sessions_are_no_sessions_and_stay(store: ArtifactStore) -> None:
    for name in ("notes.txt", "[1]", '{"owner": "ann"}'):
        await store.create(
            CONTEXT, f"{len(name)}.txt", name=name, media_type="text/plain", override=False, key="k", now=1
        )
    sessions = ThinkingSessions(store, max_total=2)
    for number in range(10):
        await sessions.think(thought(), owner=f"{number}")
    await sessions.sweep()
    assert len(await sessions.all_sessions()) == 2
    assert len(await store.list(CONTEXT)) == 5


async def test_the_limit_of_an_owner_holds_for_several_writers(store: ArtifactStore, clock: FakeClock) -> None:
    # T48
    writers = [ThinkingSessions(store, max_sessions=3) for _ in range(3)]
    for number in range(12):
        clock.time += 1
        await writers[number % 3].think(thought(), session_id=f"s{number}", owner="ann")
        assert len(await store.list(CONTEXT)) <= 3
    assert [each.session_id for each in await writers[0].all_sessions()] == ["s9", "s10", "s11"]


async def test_a_session_that_another_writer_uses_is_not_deleted_as_expired(
    store: ArtifactStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = ThinkingSessions(store), ThinkingSessions(store)
    await other.think(thought(), session_id="s")
    clock.time += 31 * MINUTE
    delete = store.delete

    async def late(context_id: str, artifact: str, *, expected: ArtifactRecord | None = None) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(store, "delete", delete)
            await other.think(thought(2), session_id="s")
        return await delete(context_id, artifact, expected=expected)

    monkeypatch.setattr(store, "delete", late)
    assert await one.sweep() == 0
    assert len(await one.get_session("s")) == 1
