"""Sessions in each store: ids, expiry, and concurrent writers (T25 to T50)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from rxloop.errors import ArtifactError, ConfigurationError, InvalidThought, SessionConflict, UnknownSession
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.storage import MemoryArtifacts
from rxloop.thinking import ThinkingSessions, ThoughtResult
from rxloop.thinking.sessions.session_artifacts import CONTEXT, Head
from support.fake_clock import MINUTE, FakeClock
from support.sequential_thoughts import codes, thought


async def list_owners(store: ArtifactStore) -> list[str]:
    return sorted(head.owner for record in await store.list(CONTEXT) if (head := Head.of(record)) is not None)


def list_numbers(result: ThoughtResult) -> list[int]:
    return [each.thought_number for each in result.history]


async def test_thought_without_an_id_starts_a_session(store: ArtifactStore) -> None:
    # T25
    sessions = ThinkingSessions(store)
    ids = [(await sessions.think(thought())).session_id for _ in range(20)]
    assert all(uuid.UUID(each).version == 7 for each in ids)
    assert ids == sorted(set(ids))


async def test_returned_id_continues_the_session(store: ArtifactStore) -> None:
    # T26
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    second = await sessions.think(thought(2, sessionId=first.session_id))
    assert (second.session_id, len(second.session)) == (first.session_id, 2)


async def test_cleared_session_keeps_its_id(store: ArtifactStore) -> None:
    # T28, T31
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought())
    cleared = await sessions.think(thought(sessionId=first.session_id, clearSession=True))
    assert (len(cleared.session), cleared.session_id) == (1, first.session_id)
    assert cleared.thought_id != first.thought_id
    late = await sessions.think(thought(2, sessionId=first.session_id))
    assert (late.session_id, len(late.session), codes(late)) == (first.session_id, 2, [])
    assert len({cleared.thought_id, late.thought_id, first.thought_id}) == 3


async def test_bound_session_starts_with_its_first_thought(store: ArtifactStore) -> None:
    # T29
    sessions = ThinkingSessions(store)
    results = [await sessions.think(thought(n), session_id="agent-1") for n in (1, 2, 3)]
    assert [(each.session_id, len(each.session)) for each in results] == [("agent-1", n) for n in (1, 2, 3)]


async def test_cleared_bound_session_keeps_its_id(store: ArtifactStore) -> None:
    # T30
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="agent-1")
    results = [
        await sessions.think(thought(n, clearSession=True if n == 1 else None), session_id="agent-1") for n in (1, 2, 3)
    ]
    assert [len(each.session) for each in results] == [1, 2, 3]
    assert {each.session_id for each in results} == {"agent-1"}
    assert await sessions.get_session("agent-1") == results[-1].session
    cleared = await sessions.clear_session("agent-1")
    assert (cleared.session_id, len(cleared)) == ("agent-1", 0)
    repeated = await sessions.think(thought(), session_id="agent-1")
    assert (len(repeated.session), codes(repeated)) == (1, [])


async def test_unused_bound_session_can_be_cleared(store: ArtifactStore) -> None:
    result = await ThinkingSessions(store).think(thought(clearSession=True), session_id="agent-1")
    assert result.session_id == "agent-1"


async def test_thought_ids_stay_unique_after_clears(store: ArtifactStore) -> None:
    # T30
    sessions = ThinkingSessions(store)
    thought_ids: list[str] = []
    for _ in range(6):
        thought_ids.append((await sessions.think(thought(clearSession=True), session_id="agent-1")).thought_id)
        thought_ids.append((await sessions.think(thought(2), session_id="agent-1")).thought_id)
        await sessions.clear_session("agent-1")
    assert thought_ids[:3] == ["agent-1#1", "agent-1#2", "agent-1#2.1"]
    assert len(set(thought_ids)) == 12
    assert len(await ThinkingSessions(store).get_session("agent-1")) == 0


async def test_made_up_id_is_refused(store: ArtifactStore) -> None:
    # T32
    sessions = ThinkingSessions(store)
    for bad in ("mine", str(uuid.uuid4())):
        with pytest.raises(UnknownSession, match="Omit sessionId") as caught:
            await sessions.think(thought(sessionId=bad))
        assert caught.value.code == "unknown_session"
    assert await sessions.all_sessions() == []


async def test_session_of_another_owner_is_unknown(store: ArtifactStore) -> None:
    # T33
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), owner="ann")
    for operation in (
        sessions.think(thought(sessionId=first.session_id), owner="bob"),
        sessions.get_session(first.session_id, owner="bob"),
        sessions.clear_session(first.session_id, owner="bob"),
    ):
        with pytest.raises(UnknownSession, match="unknown sessionId"):
            await operation
    assert (await sessions.get_session(first.session_id, owner="ann")) == first.session


async def test_concurrent_agents_use_separate_sessions(store: ArtifactStore) -> None:
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


async def test_used_session_does_not_expire(store: ArtifactStore, clock: FakeClock) -> None:
    # T35
    sessions = ThinkingSessions(store)
    for n in range(1, 8):
        result = await sessions.think(thought(n, 9), session_id="s")
        assert (len(result.session), codes(result)) == (n, [])
        clock.time += 20 * MINUTE


async def test_unused_session_expires(store: ArtifactStore, clock: FakeClock) -> None:
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
    assert (late.session_id, late.thought_id == first.thought_id) == (first.session_id, False)
    after = await sessions.think(thought(4, sessionId=first.session_id))
    assert (after.session_id, len(after.session)) == (late.session_id, 2)


async def test_ttl_may_start_at_creation(store: ArtifactStore, clock: FakeClock) -> None:
    # T37
    sessions = ThinkingSessions(store, ttl_from="created")
    for n in (1, 2):
        await sessions.think(thought(n), session_id="s")
        clock.time += 20 * MINUTE
    expired = await sessions.think(thought(1), session_id="s")
    assert codes(expired) == ["session_expired"]
    clock.time += 20 * MINUTE
    for n, writer in enumerate((sessions, ThinkingSessions(store, ttl_from="created")), start=2):
        # Only the artifact is older than the lifetime.
        assert await writer.sweep() == 0
        assert codes(await writer.think(thought(n), session_id="s")) == []
    clock.time += 11 * MINUTE
    assert await sessions.sweep() == 1


async def test_rejected_thoughts_and_reads_do_not_prolong_a_session(store: ArtifactStore, clock: FakeClock) -> None:
    # T14
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="s")
    clock.time += 29 * MINUTE
    with pytest.raises(ValueError, match="thoughtNumber"):
        await sessions.think(thought(0), session_id="s")
    await sessions.get_session("s")
    clock.time += 2 * MINUTE
    assert codes(await sessions.think(thought(2), session_id="s")) == ["session_expired"]


async def test_sessions_without_ttl_never_expire(store: ArtifactStore, clock: FakeClock) -> None:
    sessions = ThinkingSessions(store, ttl=None)
    await sessions.think(thought(), session_id="s")
    clock.time += 10_000 * MINUTE
    assert len((await sessions.think(thought(2), session_id="s")).session) == 2
    assert await sessions.sweep() == 0


def test_no_timer_keeps_the_process_alive(tmp_path: Path) -> None:
    # T38
    program = (
        "import asyncio\n"
        "from rxloop.storage import MemoryArtifacts, SqliteArtifacts\n"
        "from rxloop.thinking import ThinkingSessions\n"
        "async def main():\n"
        "    for sessions in (ThinkingSessions(MemoryArtifacts()), ThinkingSessions(SqliteArtifacts('s.db'))):\n"
        "        thought = {'thought': 'x', 'thoughtNumber': 1, 'totalThoughts': 2, 'nextThoughtNeeded': True}\n"
        "        await sessions.think(thought)\n"
        "asyncio.run(main(), debug=True)\n"
    )
    command = [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", program]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (completed.returncode, completed.stdout) == (0, "")
    assert "Task was destroyed" not in completed.stderr
    assert "never awaited" not in completed.stderr


async def test_sweep_deletes_only_expired_sessions(store: ArtifactStore, clock: FakeClock) -> None:
    # T39
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), owner="ann")
    clock.time += 20 * MINUTE
    live = await sessions.think(thought(), owner="ann")
    await sessions.clear_session(live.session_id, owner="ann")
    clock.time += 15 * MINUTE
    assert await sessions.sweep() == 1
    assert await list_owners(store) == ["ann"]
    assert (await sessions.get_session(live.session_id, owner="ann")).session_id == live.session_id
    assert await sessions.sweep() == 0


async def test_repeated_call_returns_the_first_result(store: ArtifactStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(1), call_id="c1")
    second = await sessions.think(thought(5, 9, sessionId=first.session_id), call_id="c2")
    await sessions.think(thought(6, 9, sessionId=first.session_id), call_id="c3")
    for writer in (sessions, ThinkingSessions(store)):
        for arguments, call_id, result in (
            (thought(1), "c1", first),
            (thought(5, 9, sessionId=first.session_id), "c2", second),
        ):
            repeated = await writer.think(arguments, call_id=call_id)
            assert (repeated.to_json(), repeated.to_text(500)) == (result.to_json(), result.to_text(500))
    assert len(await sessions.get_session(first.session_id)) == 3
    assert len(await sessions.all_sessions()) == 1


async def test_concurrent_equal_calls_start_one_session(store: ArtifactStore) -> None:
    # T43, T44
    writers = [ThinkingSessions(store) for _ in range(4)]
    for number in range(10):
        results = await asyncio.gather(*(each.think(thought(), owner="ann", call_id=f"c{number}") for each in writers))
        assert len({each.thought_id for each in results}) == 1
    assert len(await writers[0].all_sessions(owner="ann")) == 10
    other = await writers[0].think(thought(), owner="bob", call_id="c1")
    assert len(other.session) == 1


async def test_repeated_call_after_a_clear_starts_another_session(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    first = await sessions.think(thought(), call_id="c1")
    await sessions.clear_session(first.session_id)
    repeated = await sessions.think(thought(), call_id="c1")
    assert repeated.session_id != first.session_id
    assert len(await sessions.get_session(first.session_id)) == 0


async def test_repeated_call_does_not_clear_again(store: ArtifactStore) -> None:
    # T44
    sessions = ThinkingSessions(store)
    await sessions.think(thought(1), session_id="s", call_id="c1")
    cleared = await sessions.think(thought(1, clearSession=True), session_id="s", call_id="c2")
    await sessions.think(thought(2), session_id="s", call_id="c3")
    repeated = await sessions.think(thought(1, clearSession=True), session_id="s", call_id="c2")
    assert repeated.to_json() == cleared.to_json()
    assert len(await sessions.get_session("s")) == 2


async def test_parallel_thoughts_keep_their_order(store: ArtifactStore) -> None:
    # T45
    sessions = ThinkingSessions(store)
    results = await asyncio.gather(*(sessions.think(thought(n, 30), session_id="s") for n in range(1, 31)))
    assert [each.placed.place for each in results] == list(range(1, 31))
    assert list_numbers(results[-1]) == list(range(1, 31))


async def test_two_writers_lose_and_duplicate_nothing(store: ArtifactStore) -> None:
    # T43
    writers = [ThinkingSessions(store), ThinkingSessions(store)]

    async def write(sessions: ThinkingSessions, name: str) -> None:
        for n in range(1, 21):
            await sessions.think(thought(n, 20, text=f"{name}{n}"), session_id="s")
            await asyncio.sleep(0)

    await asyncio.gather(write(writers[0], "a"), write(writers[1], "b"))
    texts = [each.thought for each in (await writers[0].get_session("s")).thoughts]
    assert sorted(texts) == sorted(f"{name}{n}" for name in "ab" for n in range(1, 21))
    for name in "ab":
        assert [each for each in texts if each[0] == name] == [f"{name}{n}" for n in range(1, 21)]


async def test_session_may_be_cleared_while_another_writer_uses_it(store: ArtifactStore) -> None:
    # T43
    writers = [ThinkingSessions(store), ThinkingSessions(store)]

    async def write(sessions: ThinkingSessions, name: str) -> list[str]:
        thought_ids: list[str] = []
        for n in range(1, 16):
            arguments = thought(n, 20, text=f"{name}{n}", clearSession=n % 5 == 0)
            result = await sessions.think(arguments, session_id="s")
            assert result.thought.thought == f"{name}{n}"
            thought_ids.append(result.thought_id)
        return thought_ids

    first, second = await asyncio.gather(write(writers[0], "a"), write(writers[1], "b"))
    assert len({*first, *second}) == 30
    assert await writers[0].get_session("s") == await ThinkingSessions(store).get_session("s")


async def test_repeated_conflicts_are_an_error(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # T43
    sessions, other = ThinkingSessions(store, max_thoughts=1_000), ThinkingSessions(store, max_thoughts=1_000)
    await sessions.think(thought(), session_id="s")
    append = store.append

    async def append_after_other(context_id: str, artifact: str, data: bytes, **options: Any) -> Any:
        if b"overtaken" in data:
            await other.think(thought(2), session_id="s")
        return await append(context_id, artifact, data, **options)

    monkeypatch.setattr(store, "append", append_after_other)
    with pytest.raises(SessionConflict, match="another writer has changed the session 's'"):
        await sessions.think(thought(2, text="overtaken"), session_id="s")
    session = await sessions.get_session("s")
    assert (len(session), {each.thought for each in session.thoughts}) == (51, {"thought 1", "thought 2"})


async def test_writer_that_missed_a_deletion_loses_no_thoughts(store: ArtifactStore, clock: FakeClock) -> None:
    # T43
    late, other = ThinkingSessions(store), ThinkingSessions(store)
    for n in (1, 2):
        await late.think(thought(n, text=f"old {n}"), session_id="s")
    await other.clear_all_sessions()
    for n in range(1, 4):
        await other.think(thought(n, text=f"new {n}"), session_id="s")
        # This writer still counts the two deleted thoughts.
        await late.think(thought(n, text=f"late {n}"), session_id="s")
    texts = [each.thought for each in (await ThinkingSessions(store).get_session("s")).thoughts]
    assert texts == ["new 1", "late 1", "new 2", "late 2", "new 3", "late 3"]
    assert (await other.get_session("s")).thoughts == (await late.get_session("s")).thoughts


async def test_refused_thought_does_not_clear_the_session(store: ArtifactStore) -> None:
    # T14, T42
    sessions = ThinkingSessions(store, strict=True)
    before = (await sessions.think(thought(), session_id="s")).session
    for bad in (thought(0, clearSession=True), thought(1, clearSession=True, isRevision=True, revisesThought=1)):
        with pytest.raises(InvalidThought):
            await sessions.think(bad, session_id="s")
    assert await ThinkingSessions(store).get_session("s") == before


async def test_session_is_unchanged_when_the_store_fails(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # T42
    sessions = ThinkingSessions(store)
    before = (await sessions.think(thought(), session_id="s")).session

    async def fail(*arguments: Any, **options: Any) -> Any:
        raise ArtifactError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", fail)
        for arguments in (thought(2), thought(clearSession=True)):
            with pytest.raises(ArtifactError, match="the disk is full"):
                await sessions.think(arguments, session_id="s")
        with pytest.raises(ArtifactError, match="the disk is full"):
            await sessions.think(thought(), session_id="new")
    assert await sessions.get_session("s") == before
    with pytest.raises(UnknownSession):
        await sessions.get_session("new")
    assert [len(each) for each in await sessions.all_sessions()] == [1]
    assert codes(await sessions.think(thought(), session_id="new")) == []


async def test_large_artifact_is_read_from_its_newest_version_and_replaced_by_a_clear(
    store: ArtifactStore,
) -> None:
    sessions = ThinkingSessions(store)
    text = "x" * 19_000
    for n in range(1, 21):
        await sessions.think(thought(n, 20, text=f"{n} {text}", clearSession=n == 5), session_id="s")
    for reader in (sessions, ThinkingSessions(store)):
        session = await reader.get_session("s")
        assert [each.thought_number for each in session.thoughts] == [*range(5, 21)]
    [record] = await store.list(CONTEXT)
    assert record.size > 20 * 19_000
    for n in range(1, 61):
        await sessions.think(thought(n, 60, text=f"{n} {text}"), session_id="s")
    version = (await sessions.get_session("s")).version
    cleared = await sessions.think(thought(clearSession=True), session_id="s")
    assert (version, cleared.session.version) == (2, 3)
    [record] = await store.list(CONTEXT)
    assert record.size < 1_000
    assert len(await ThinkingSessions(store).get_session("s")) == 1


async def test_thoughts_before_the_newest_version_are_not_read(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = ThinkingSessions(store)
    for n in range(40):
        await sessions.think(thought(text=f"{n} {'x' * 19_000}", clearSession=True), session_id="s")
    await sessions.think(thought(2), session_id="s")
    sizes: list[int] = []
    read = store.read

    async def count_read(*arguments: Any, **options: Any) -> bytes:
        content = await read(*arguments, **options)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(store, "read", count_read)
    assert len(await ThinkingSessions(store).get_session("s")) == 2
    assert sum(sizes) < 100_000
    sizes.clear()
    await sessions.think(thought(3), session_id="s")
    assert not sizes


async def test_damaged_session_is_an_error_and_unchanged(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    await sessions.think(thought(), session_id="s")
    [record] = await store.list(CONTEXT)
    await store.append(CONTEXT, record.artifact_id, b"garbage\n", version=1, last=False, key="other", now=1)
    with pytest.raises(ArtifactError, match="the artifact of the session 's' is damaged"):
        await ThinkingSessions(store).think(thought(2), session_id="s")
    assert (await store.versions(CONTEXT, record.artifact_id))[-1].chunks == 2


async def test_oldest_complete_session_is_removed_above_the_limit(store: ArtifactStore, clock: FakeClock) -> None:
    # T48
    sessions = ThinkingSessions(store, max_sessions=3)
    for name, needed in (("open", True), ("done", False), ("done later", False)):
        await sessions.think(thought(needed=needed), session_id=name)
        clock.time += 1
    await sessions.think(thought(), session_id="other", owner="bob")

    async def list_sessions() -> list[str]:
        return [each.session_id for each in await sessions.all_sessions(owner="")]

    await sessions.think(thought(), session_id="4th")
    assert await list_sessions() == ["open", "done later", "4th"]
    clock.time += 1
    await sessions.think(thought(), session_id="5th")
    assert await list_sessions() == ["open", "4th", "5th"]
    clock.time += 1
    await sessions.think(thought(), session_id="6th")
    assert await list_sessions() == ["4th", "5th", "6th"]
    assert len(await sessions.all_sessions(owner="bob")) == 1


async def test_clear_all_does_not_affect_other_owners(store: ArtifactStore) -> None:
    # T49
    sessions = ThinkingSessions(store)
    for owner in ("ann", "ann", "bob"):
        await sessions.think(thought(), owner=owner)
    assert await sessions.clear_all_sessions(owner="ann") == 2
    assert await sessions.all_sessions(owner="ann") == []
    assert len(await sessions.all_sessions(owner="bob")) == 1


async def test_clear_all_without_an_owner_clears_the_sessions_of_all_owners(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store)
    for owner in ("ann", "bob", ""):
        await sessions.think(thought(), owner=owner)
    assert await sessions.clear_all_sessions(owner="") == 1
    assert await sessions.clear_all_sessions() == 2
    assert await sessions.all_sessions() == []


async def test_session_is_immutable(store: ArtifactStore) -> None:
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


async def test_thousand_sessions_can_be_used_concurrently(store: ArtifactStore) -> None:
    sessions = ThinkingSessions(store, max_sessions=1_000)

    async def use(number: int) -> int:
        for n in (1, 2, 3):
            result = await sessions.think(
                thought(n, text=f"{number}.{n}"), session_id=f"s{number}", owner=f"o{number % 7}"
            )
        return len(result.session)

    assert await asyncio.gather(*map(use, range(1_000))) == [3] * 1_000
    remaining = [each for owner in range(7) for each in await sessions.all_sessions(owner=f"o{owner}")]
    assert all(
        [t.thought for t in each.thoughts] == [f"{each.session_id[1:]}.{n}" for n in (1, 2, 3)] for each in remaining
    )


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl_from": "never"}, {"max_sessions": 0}, {"max_thoughts": 0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        ThinkingSessions(MemoryArtifacts(), **options)
