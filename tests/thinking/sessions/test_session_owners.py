"""Session ids of owners, models and programs."""

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


async def list_owners(store: ArtifactStore) -> list[str]:
    return sorted(head.owner for record in await store.list(CONTEXT) if (head := Head.of(record)) is not None)


async def test_program_can_continue_the_session_of_any_owner(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    second = await sessions.think(thought(2), session_id=first.session_id)
    assert (second.session.owner, len(second.session), codes(second)) == ("conversation", 2, [])
    assert await list_owners(store) == ["conversation"]


async def test_repeated_call_of_the_program_adds_no_second_thought(store: ArtifactStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="conversation")
    results = [await sessions.think(thought(2), session_id=first.session_id, call_id="c") for _ in range(2)]
    assert [len(each.session) for each in results] == [2, 2]


async def test_model_cannot_use_the_session_of_another_owner(store: ArtifactStore) -> None:
    # T33
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    for owner in ("bob", "", None):
        with pytest.raises(UnknownSession):
            await sessions.think(thought(2, sessionId=first.session_id), owner=owner)
    assert len((await sessions.get_session(first.session_id)).thoughts) == 1


async def test_id_of_another_owner_is_refused_and_starts_no_session(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    with pytest.raises(UnknownSession):
        await sessions.think(thought(2), session_id=first.session_id, owner="bob")
    assert await list_owners(store) == ["ann"]


async def test_owners_may_use_the_same_session_name(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    for owner in ("ann", "bob"):
        await sessions.think(thought(), session_id="plan", owner=owner)
    for operation in (sessions.get_session("plan"), sessions.clear_session("plan")):
        with pytest.raises(UnknownSession, match="unknown sessionId 'plan'"):
            await operation
    own = await sessions.think(thought(), session_id="plan")
    assert (own.session.owner, len(own.session), codes(own)) == ("", 1, [])
    assert (await sessions.get_session("plan", owner="bob")).owner == "bob"
    assert await list_owners(store) == ["", "ann", "bob"]


async def test_session_of_the_program_has_priority(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="plan", owner="")
    await sessions.think(thought(), session_id="plan", owner="ann")
    assert (await sessions.get_session("plan")).owner == ""


async def test_unambiguous_session_is_found_without_an_owner(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    result = await sessions.think(thought(), owner="conversation")
    assert await sessions.get_session(result.session_id) == result.session
    assert await sessions.all_sessions() == [result.session]
    cleared = await sessions.clear_session(result.session_id)
    assert cleared.owner == "conversation"


async def test_generated_id_without_a_session_is_a_warning(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), session_id=new_id())
    assert codes(first) == ["session_new"]
    assert codes(await sessions.think(thought(2), session_id=first.session_id)) == []
    assert codes(await sessions.think(thought(), session_id="planner")) == []


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "x" * 201])
async def test_invalid_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="session_id="):
        await ThinkingSessions(MemoryArtifacts()).think(thought(), session_id=name)


async def test_later_thought_removes_expired_sessions_of_all_owners(store: ArtifactStore, clock: FakeClock) -> None:
    sessions = ThinkingSessions(store)
    for owner in range(50):
        await sessions.think(thought(), owner=f"conversation {owner}")
    clock.time += 30 * MINUTE + 1
    await sessions.think(thought(), owner="another")
    assert await list_owners(store) == ["another"]


async def test_removed_session_is_still_reported_as_expired(store: ArtifactStore, clock: FakeClock) -> None:
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
    later = await sessions.think(thought(3, sessionId=first.session_id))
    assert (later.session_id, len(later.session)) == (late.session_id, 2)
    assert codes(await sessions.think(thought(2), session_id=bound.session_id)) == ["session_expired"]


async def test_complete_and_unused_sessions_are_removed_above_the_total_limit(
    store: ArtifactStore, clock: FakeClock
) -> None:
    sessions = ThinkingSessions(store, ttl=None, max_total=20)
    for number in range(200):
        clock.time += 1
        await sessions.think(thought(needed=number % 2 == 0), owner=f"conversation {number}")
        assert len(await list_owners(store)) <= 21
    remaining = [int(owner.split()[1]) for owner in await list_owners(store)]
    assert 199 in remaining
    assert all(number % 2 == 0 for number in remaining if number < 180)


async def test_session_cleared_repeatedly_is_one_artifact(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store, max_total=20)
    for _ in range(100):
        await sessions.think(thought(clearSession=True), session_id="s")
    assert len(await store.list(CONTEXT)) == 1
    assert len((await sessions.think(thought(2), session_id="s")).session) == 2


async def test_other_artifacts_are_ignored_and_kept(store: ArtifactStore) -> None:
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


async def test_limit_per_owner_applies_across_writers(store: ArtifactStore, clock: FakeClock) -> None:
    # T48
    writers = [ThinkingSessions(store, max_sessions=3) for _ in range(3)]
    for number in range(12):
        clock.time += 1
        await writers[number % 3].think(thought(), session_id=f"s{number}", owner="ann")
        assert len(await store.list(CONTEXT)) <= 3
    assert [each.session_id for each in await writers[0].all_sessions()] == ["s9", "s10", "s11"]


async def test_session_used_by_another_writer_is_not_deleted_as_expired(
    store: ArtifactStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = ThinkingSessions(store), ThinkingSessions(store)
    await other.think(thought(), session_id="s")
    clock.time += 31 * MINUTE
    delete = store.delete

    async def delete_after_thought(context_id: str, artifact: str, *, expected: ArtifactRecord | None = None) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(store, "delete", delete)
            await other.think(thought(2), session_id="s")
        return await delete(context_id, artifact, expected=expected)

    monkeypatch.setattr(store, "delete", delete_after_thought)
    assert await one.sweep() == 0
    assert len(await one.get_session("s")) == 1
