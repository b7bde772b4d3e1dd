"""Input, results and warnings of sessions (T1 to T24)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import InvalidThought, SessionFull
from rxloop.storage import MemoryArtifacts
from rxloop.thinking import Session, ThinkingSessions
from rxloop.thinking.sessions.thought import make_parameters
from support.sequential_thoughts import codes, think, thought

OFFICIAL = ["thoughtNumber", "totalThoughts", "nextThoughtNeeded", "branches", "thoughtHistoryLength"]


async def test_first_thought_is_echoed() -> None:
    # T1
    result = await think(thought(1, 3))
    assert result.official() == dict(zip(OFFICIAL, (1, 3, True, [], 1), strict=True))
    assert "summary" not in result.to_json()
    assert "warnings" not in result.to_json()


async def test_number_above_the_total_raises_the_total() -> None:
    # T2
    result = await think(thought(5, 3))
    assert result.official()["totalThoughts"] == 5
    assert result.session.thoughts[0].total_thoughts == 5


async def test_total_may_decrease() -> None:
    # T3
    result = await think(thought(1, 5), thought(2, 3))
    assert result.official()["totalThoughts"] == 3


async def test_last_thought_completes_the_session() -> None:
    # T4
    result = await think(thought(1), thought(2), thought(3, needed=False))
    assert (len(result.session), result.session.status) == (3, "complete")


async def test_branches_are_listed_once_in_order_of_creation() -> None:
    # T5, T6
    result = await think(
        thought(1),
        thought(2, branchFromThought=1, branchId="branch-b"),
        thought(2, branchFromThought=1, branchId="branch-a"),
        thought(3, branchFromThought=1, branchId="branch-b"),
    )
    assert result.branches == ["branch-b", "branch-a"]
    assert [each.thought_number for each in result.session.branches["branch-b"]] == [2, 3]


async def test_branch_continues_by_its_name() -> None:
    # T6
    result = await think(thought(1), thought(2, branchFromThought=1, branchId="a"), thought(3, branchId="a"))
    assert len(result.session.branches["a"]) == 2
    assert codes(result) == []


async def test_special_names_are_ordinary_branch_names() -> None:
    # T7
    names = ["z", "__proto__", "10", "constructor", "2", "  "]
    result = await think(thought(1), *(thought(2, branchFromThought=1, branchId=name) for name in names))
    assert result.branches == names


async def test_thought_above_the_length_limit_is_refused() -> None:
    # T8, T14
    sessions = ThinkingSessions(MemoryArtifacts())
    await think(thought(text="x" * 10_000), sessions=sessions)
    with pytest.raises(InvalidThought, match="20001 characters, and 20000 are allowed") as caught:
        await think(thought(2, text="x" * 20_001), sessions=sessions)
    assert caught.value.code == "thought_too_long"
    assert list(caught.value.fields) == ["thought"]
    assert len(await sessions.get_session("s")) == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1", 1), (" 2 ", 2), ("1.0", 1), (3.0, 3), ("1e1", 10), ("+4", 4), ("5.", 5), (".6e1", 6), ("1E003", 1_000)),
        # The reference server also accepts these, because it uses Number() of JavaScript.
        *(("0x10", 16), ("0o7", 7), ("0b11", 3), ("\ufeff8\u00a0", 8), ("0" * 200 + "9", 9), ([3], 3), ([["4"]], 4)),
    ],
)
async def test_numbers_may_be_text(text: Any, number: int) -> None:
    # T9
    result = await think(thought(text, text))
    assert (result.thought.thought_number, result.thought.total_thoughts) == (number, number)


@pytest.mark.parametrize(
    "text", ["one", "", 0, -1, 1.5, "1_000", "0", "-1", "1.5", True, [3, 4], ["x"], {}, 2**60, "1e99", "²"]
)
@pytest.mark.parametrize("field", ["thoughtNumber", "totalThoughts", "revisesThought", "branchFromThought"])
async def test_invalid_number_is_refused_with_its_field(text: Any, field: str) -> None:
    # T9
    with pytest.raises(InvalidThought, match=f"{field}: must be a whole number") as caught:
        await think({**thought(), field: text})
    assert list(caught.value.fields) == [field]


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("False", False), ("true", True), (False, False)])
async def test_booleans_may_be_text(text: Any, value: bool) -> None:
    # T10
    result = await think(thought(needed=text, isRevision=text))
    assert (result.thought.next_thought_needed, result.thought.is_revision) == (value, value)


@pytest.mark.parametrize("text", ["yes", 1, "on", "", 0, " true "])
@pytest.mark.parametrize("field", ["nextThoughtNeeded", "isRevision", "needsMoreThoughts", "clearSession"])
async def test_invalid_boolean_is_refused(text: Any, field: str) -> None:
    # T10
    with pytest.raises(InvalidThought, match=f"{field}: must be true or false"):
        await think({**thought(), field: text})


async def test_null_and_unknown_fields_are_ignored() -> None:
    # T11, T12
    optional = [
        name
        for name in make_parameters(has_session=False)["properties"]
        if name not in make_parameters(has_session=False)["required"]
    ]
    result = await think({**thought(), **dict.fromkeys(optional), "mood": "good"})
    assert result.thought.is_revision is None
    assert codes(result) == []


@pytest.mark.parametrize("field", ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"])
async def test_missing_field_is_named_and_starts_no_session(field: str) -> None:
    # T13
    sessions = ThinkingSessions(MemoryArtifacts())
    incomplete = {name: value for name, value in thought().items() if name != field}
    with pytest.raises(InvalidThought, match=f"{field}: required, but missing"):
        await sessions.think(incomplete)
    assert await sessions.all_sessions() == []


async def test_refused_thought_changes_nothing() -> None:
    # T14
    sessions = ThinkingSessions(MemoryArtifacts(), strict=True)
    before = (await think(thought(1), sessions=sessions)).session
    for bad in (thought(0), thought(2, branchFromThought=77, branchId="b"), thought(2, text=None) | {"thought": 3}):
        with pytest.raises(InvalidThought):
            await think(bad, sessions=sessions)
    after = await sessions.get_session("s")
    assert (after.thoughts, after.branches, after.used) == (before.thoughts, before.branches, before.used)


async def test_dangling_revision_is_a_warning_or_refused() -> None:
    # T15
    dangling = thought(1, isRevision=True, revisesThought=1)
    assert codes(await think(dangling)) == ["dangling_revision"]
    with pytest.raises(InvalidThought) as caught:
        await think(dangling, sessions=ThinkingSessions(MemoryArtifacts(), strict=True))
    assert caught.value.code == "dangling_revision"


async def test_revision_without_a_target_is_a_warning() -> None:
    # T16
    result = await think(thought(1), thought(2, isRevision=True))
    assert codes(result) == ["revision_without_target"]
    assert "None" not in result.to_text(1_000)


async def test_dangling_branch_is_a_warning_or_refused() -> None:
    # T17
    dangling = thought(2, branchFromThought=77, branchId="b")
    result = await think(thought(1), dangling)
    assert "dangling_branch" in codes(result)
    assert result.branches == ["b"]
    with pytest.raises(InvalidThought) as caught:
        await think(thought(1), dangling, sessions=ThinkingSessions(MemoryArtifacts(), strict=True))
    assert caught.value.code == "dangling_branch"


async def test_duplicate_number_is_kept_with_a_warning() -> None:
    # T18
    result = await think(thought(1), thought(1, text="again"))
    assert codes(result) == ["duplicate_number"]
    assert len(result.session) == 2
    assert codes(await think(thought(1), thought(1, isRevision=True, revisesThought=1))) == []


async def test_gap_is_a_warning() -> None:
    # T19
    assert codes(await think(thought(1), thought(5, 5))) == ["gap"]
    assert codes(await think(thought(1), thought(2), thought(2, branchFromThought=1, branchId="b"))) == []
    assert codes(await think(thought(1), thought(2), thought(5, 5, branchFromThought=1, branchId="b"))) == ["gap"]


async def test_thought_after_the_end_reopens_the_session() -> None:
    # T20
    result = await think(thought(1, needed=False), thought(2))
    assert result.session.status == "active"
    assert codes(result) == ["reopened"]


async def test_needs_more_thoughts_raises_the_total_at_the_end() -> None:
    # T21
    result = await think(thought(1), thought(2, 2, needed=False, needsMoreThoughts=True))
    assert result.to_json()["totalThoughts"] == result.session.total_thoughts == 3
    assert result.session.status == "active"
    assert codes(result) == ["needs_more", "total_raised"]
    assert result.to_json()["nextThoughtNeeded"] is False
    assert result.official()["totalThoughts"] == 2


def test_four_fields_are_required() -> None:
    # T24
    for has_session in (True, False):
        assert make_parameters(has_session=has_session)["required"] == [
            "thought",
            "nextThoughtNeeded",
            "thoughtNumber",
            "totalThoughts",
        ]
    assert "sessionId" in make_parameters(has_session=False)["properties"]
    assert "sessionId" not in make_parameters(has_session=True)["properties"]


async def test_last_thought_returns_a_summary() -> None:
    # T40
    result = await think(thought(1), thought(2, needed=False))
    assert result.to_json()["summary"] == "Sequential thinking complete: 2 thoughts processed across 0 branches."
    again = await think(thought(1), thought(2, branchFromThought=1, branchId="b", needed=False))
    assert again.summary == "Sequential thinking complete: 2 thoughts processed across 1 branches."


async def test_history_contains_the_target_of_a_revision() -> None:
    # T27
    result = await think(thought(1), thought(2, isRevision=True, revisesThought=1))
    assert result.to_json()["thoughtHistory"][1] == {
        "thoughtNumber": 2,
        "thought": "thought 2",
        "isRevision": True,
        "revisesThought": 1,
        "branchId": None,
    }


async def test_full_session_asks_for_a_conclusion() -> None:
    # T47
    sessions = ThinkingSessions(MemoryArtifacts(), max_thoughts=2)
    await think(thought(1), thought(2), sessions=sessions)
    with pytest.raises(SessionFull, match="Conclude now") as caught:
        await think(thought(3), sessions=sessions)
    assert caught.value.code == "max_thoughts"
    assert len(await sessions.get_session("s")) == 2


async def test_three_equal_thoughts_in_a_row_are_a_repetition() -> None:
    # T54
    outcomes = [codes(await think(*(thought(n, 9, text="same") for n in range(1, count + 1)))) for count in (2, 3, 4)]
    assert outcomes == [[], ["repetition"], ["repetition"]]
    assert codes(await think(thought(1, text="a"), thought(2, text="b"), thought(3, text="a"))) == []


async def test_branch_number_refers_to_a_thought_of_its_parent_branches() -> None:
    # T76
    result = await think(
        thought(1),
        thought(2, text="main"),
        thought(2, text="a", branchFromThought=1, branchId="a"),
        thought(3, text="a3", branchId="a"),
        thought(4, text="b", branchFromThought=2, branchId="b"),
    )
    branch = result.session.branch("b")
    assert branch is not None
    assert branch.parent == "a"
    assert result.session.get_thought(result.placed.follows or 0).thought.thought == "a"


async def test_text_for_the_model_is_bounded_and_the_result_is_complete() -> None:
    # T46
    text = "word " * 80
    result = await think(*(thought(n, 50, text=text) for n in range(1, 51)))
    outcomes = result.to_text(500)
    assert len(outcomes.encode()) <= 500 * 4 + 100
    shown = json.loads(outcomes)
    assert 1 <= len(shown["thoughtHistory"]) < 10
    assert shown["thoughtHistory"][-1]["thoughtNumber"] == 50
    assert shown["earlierThoughts"].startswith(str(50 - len(shown["thoughtHistory"])))
    assert len(result.to_json()["thoughtHistory"]) == 50


@given(st.lists(st.tuples(st.text(max_size=60), st.sampled_from(["", "a", "b\n", "é" * 30])), min_size=1, max_size=12))
async def test_text_for_the_model_always_contains_the_newest_thought(thoughts: list[tuple[str, str]]) -> None:
    given = [
        thought(n, text=text, **({"branchFromThought": 1, "branchId": name} if name and n > 1 else {}))
        for n, (text, name) in enumerate(thoughts, start=1)
    ]
    result = await think(*given)
    for budget in (1, 50, 400):
        shown = json.loads(result.to_text(budget))
        assert shown["thoughtHistory"][-1]["thoughtNumber"] == len(thoughts)
        assert len(shown["thoughtHistory"]) + int(shown.get("earlierThoughts", "0 ").split()[0]) == len(thoughts)
    rows = [each.model_dump_json(exclude_none=True) for each in result.session.thoughts]
    again = Session("s", created=result.session.created)
    for row in rows:
        again = again.add(type(result.thought).model_validate_json(row))
    assert again.thoughts == result.session.thoughts
    assert again.branch_names() == result.session.branch_names()
