from typing import Any

import pytest

from rxloop import Thoughts
from rxloop.errors import ConfigurationError, ToolError
from rxloop.protocol.events import ContentCompleteEvent, Event, ThoughtStreamEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph import ThoughtGraph
from rxloop.tools.think_aloud import ThinkAloud, think_aloud
from support.fake_host import FakeHost


class Thinker:
    """One run whose model calls `think_aloud`, beside another tool."""

    def __init__(self, config: Thoughts | None = None, events: list[Event] | None = None) -> None:
        self.tool = ThinkAloud(config)
        self.host = FakeHost(events or ())
        self.steps = 0

    async def think(self, thought: str = "Hm.", thought_type: str = "planning", **more: Any) -> dict[str, Any]:
        self.steps += 1
        call = ToolCall(id=f"call_{self.steps}", name="think_aloud")
        self.host.message(call, ToolCall(id=f"work_{self.steps}", name="work"), step=str(self.steps))
        return await self.call(call, {"thought": thought, "thought_type": thought_type, **more})

    async def call(self, call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self.tool.call(arguments, self.host.context(call, step=str(self.steps)))

    @property
    def thoughts(self) -> list[ThoughtStreamEvent]:
        return [event for event in self.host.events if isinstance(event, ThoughtStreamEvent)]


def test_the_schema_asks_for_a_thought_and_its_type() -> None:  # L15
    definition = think_aloud().definition
    assert definition.name == "think_aloud"
    assert definition.parameters["required"] == ["thought", "thought_type"]
    assert definition.parameters["additionalProperties"] is False
    assert set(definition.parameters["properties"]) == {
        "thought", "thought_type", "thought_id", "related_to", "confidence", "alternatives", "verbosity", "metadata"
    }  # fmt: skip
    for word in ("beside other tools", "thought_id", "related_to"):
        assert word in definition.description


def test_only_the_allowed_types_are_offered_to_the_model() -> None:
    schema = think_aloud(Thoughts(types=("planning", "decision"), hidden=True)).definition
    assert schema.parameters["properties"]["thought_type"]["enum"] == ["planning", "decision"]
    assert schema.hidden  # L29


async def test_a_thought_is_one_event_and_its_id_is_returned() -> None:  # L17, L26
    run = Thinker()
    answer = await run.think(
        "First Oslo.", "decision", thought_id="plan", confidence=1, alternatives=["b", "a"], metadata={"k": [1]}
    )
    assert answer == {"acknowledged": True, "thoughtId": "plan", "message": "Noted as 'plan'."}
    assert run.thoughts == [
        ThoughtStreamEvent(
            thought_id="plan",
            thought_type="decision",
            content="First Oslo.",
            confidence=1.0,
            alternatives=["b", "a"],
            source="tool",  # L30
            tool_call_id="call_1",
            step="1",
            metadata={"k": [1]},
        )
    ]


@pytest.mark.parametrize("given", [{}, {"thought_id": ""}, {"thought_id": " "}, {"thought_id": None}])
async def test_an_id_is_made_where_there_is_none(given: dict[str, Any]) -> None:  # L18
    run = Thinker()
    ids = [(await run.think(**given))["thoughtId"] for _ in range(3)]
    assert ids == ["t1", "t2", "t3"] == [thought.thought_id for thought in run.thoughts]


async def test_a_made_id_avoids_those_that_are_taken() -> None:  # L18
    run = Thinker()
    await run.think(thought_id="t2")
    assert (await run.think())["thoughtId"] == "t3"


async def test_related_to_links_a_thought_to_an_earlier_one_and_to_a_call() -> None:  # L19, L20
    run = Thinker()
    await run.think(thought_id="plan")
    first = await run.think(thought_id="next", related_to="plan")
    second = await run.think(thought_id="seen", related_to=" work_2 ")
    third = await run.think(thought_id="same", related_to="work_4")  # a call of its own message
    assert not any("warning" in answer for answer in (first, second, third))
    assert ThoughtGraph.of(run.host.events).edges == (
        ("plan", "next", "thought"), ("work_2", "seen", "call"), ("work_4", "same", "call")
    )  # fmt: skip


async def test_related_to_nothing_known_is_kept_with_a_warning_that_names_the_nearest() -> None:  # L21
    run = Thinker()
    await run.think(thought_id="check-units")
    answer = await run.think(related_to="check_unit")
    assert run.thoughts[1].related_to == "check_unit"
    assert answer["acknowledged"] is True
    assert "no thought or tool call has the id 'check_unit'; the nearest ids are check-units" in answer["warning"]


async def test_a_thought_that_is_related_to_itself_gets_a_warning() -> None:  # L21
    assert "warning" in await Thinker().think(thought_id="loop", related_to="loop")


async def test_an_id_that_is_taken_gets_a_number_and_the_model_is_told() -> None:  # L22
    run = Thinker()
    answers = [await run.think(thought_id="plan") for _ in range(3)]
    assert [answer["thoughtId"] for answer in answers] == ["plan", "plan-2", "plan-3"]
    assert answers[1]["message"] == "Noted as 'plan-2', because 'plan' was taken: refer to it by 'plan-2'."
    assert (await run.think(thought_id="work_1"))["thoughtId"] == "work_1-2"


async def test_an_id_that_is_taken_can_be_kept_or_refused() -> None:  # L22
    keeping, refusing = Thinker(Thoughts(duplicates="keep")), Thinker(Thoughts(duplicates="refuse"))
    for run in (keeping, refusing):
        await run.think(thought_id="plan")
    assert (await keeping.think(thought_id="plan"))["thoughtId"] == "plan"
    with pytest.raises(ToolError, match="thought_id: 'plan' is taken"):
        await refusing.think(thought_id="plan")
    assert (len(keeping.thoughts), len(refusing.thoughts)) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"thought_type": "planning"}, "thought"),
        ({"thought": "", "thought_type": "planning"}, "thought"),
        ({"thought": " \n", "thought_type": "planning"}, "thought"),
        ({"thought": "x" * 20_001, "thought_type": "planning"}, "thought"),
        ({"thought": "x"}, "thought_type"),
        ({"thought": "x", "thought_type": "musing"}, "thought_type"),
        ({"thought": "x", "thought_type": "planning", "confidence": 1.1}, "confidence"),
        ({"thought": "x", "thought_type": "planning", "confidence": -0.1}, "confidence"),
        ({"thought": "x", "thought_type": "planning", "confidence": float("nan")}, "confidence"),
        ({"thought": "x", "thought_type": "planning", "verbosity": "loud"}, "verbosity"),
        ({"thought": "x", "thought_type": "planning", "alternatives": "one"}, "alternatives"),
    ],
)
async def test_what_does_not_fit_is_named_and_nothing_is_emitted(arguments: dict[str, Any], field: str) -> None:  # L23
    run = Thinker()
    with pytest.raises(ToolError, match=rf"(^|- ){field}: "):
        await run.call(ToolCall(id="call_1", name="think_aloud"), arguments)
    assert run.host.events == []


async def test_what_there_is_no_argument_for_is_passed_over_and_names_may_be_in_any_case() -> None:
    run = Thinker()
    await run.think("x", " Planning", verbosity="BRIEF", idea=1, thoughtNumber=2)
    assert [(thought.thought_type, thought.verbosity) for thought in run.thoughts] == [("planning", "brief")]


async def test_a_type_that_is_not_allowed_is_refused_with_those_that_are() -> None:  # L24
    run = Thinker(Thoughts(types=("planning", "critique")))
    with pytest.raises(ToolError, match="thought_type: Input should be 'planning' or 'critique'"):
        await run.think("x", "decision")
    assert run.thoughts == []


async def test_a_type_may_be_written_in_capitals() -> None:
    run = Thinker()
    await run.think("x", " Planning")
    assert run.thoughts[0].thought_type == "planning"


async def test_an_id_is_one_line_without_control_characters() -> None:
    run = Thinker()
    assert (await run.think(thought_id="a\n\x1b b"))["thoughtId"] == "a b"
    assert "warning" not in await run.think(related_to=" a\x1b b")
    assert run.thoughts[1].related_to == "a b"


async def test_a_thought_has_so_many_alternatives() -> None:
    run = Thinker()
    with pytest.raises(ToolError, match="alternatives"):
        await run.think(alternatives=["x"] * 51)
    assert run.thoughts == []


async def test_verbosity_is_the_configured_one_where_it_is_left_out() -> None:  # L25
    normal, brief = Thinker(), Thinker(Thoughts(verbosity="brief"))
    for run in (normal, brief):
        await run.think(verbosity=None)
        await run.think(verbosity="detailed")
    assert [thought.verbosity for thought in normal.thoughts] == ["normal", "detailed"]
    assert [thought.verbosity for thought in brief.thoughts] == ["brief", "detailed"]


async def test_null_stands_for_an_argument_that_is_left_out_and_a_number_for_an_id() -> None:
    run = Thinker()
    nothing: dict[str, Any] = dict.fromkeys(["related_to", "confidence", "alternatives", "metadata"])
    assert (await run.think(thought_id=7, **nothing))["thoughtId"] == "7"
    assert (run.thoughts[0].alternatives, run.thoughts[0].metadata, run.thoughts[0].related_to) == ([], {}, None)


def thought_only(step: int) -> list[Event]:
    call = ToolCall(id=f"c{step}", name="think_aloud")
    return [
        ContentCompleteEvent(tool_calls=[call], step=str(step)),
        ToolCompleteEvent(call=call, success=True, content="", step=str(step)),
    ]


@pytest.mark.parametrize("iterations", [2, 3])
async def test_after_so_many_iterations_of_nothing_else_thinking_is_refused(iterations: int) -> None:  # L34
    run = Thinker(events=[event for step in range(iterations) for event in thought_only(step)])
    call = ToolCall(id="again", name="think_aloud")
    run.host.message(call, step="9")
    arguments = {"thought": "Once more.", "thought_type": "planning"}
    if iterations < 3:
        await run.call(call, arguments)
        return
    with pytest.raises(ToolError, match=r"3 times in a row and done nothing else\. Act now"):
        await run.call(call, arguments)
    assert run.thoughts == []


async def test_beside_another_tool_thinking_is_never_refused() -> None:  # L34
    run = Thinker(events=[event for step in range(5) for event in thought_only(step)])
    await run.think()
    assert len(run.thoughts) == 1


async def test_earlier_thoughts_are_known_in_a_resumed_run() -> None:  # L37
    before = Thinker()
    await before.think(thought_id="plan")
    resumed = Thinker(events=before.host.events)
    resumed.host.info.ids, resumed.steps = {**resumed.host.info.ids, "attempt": 2}, 1
    assert "warning" not in await resumed.think("Go on.", related_to="plan")
    assert resumed.thoughts[-1].thought_id == "t2"


async def test_a_call_that_was_interrupted_behind_its_thought_does_not_think_it_twice() -> None:  # L37
    before = Thinker()
    await before.think("Once.", thought_id="plan")
    resumed = Thinker(events=before.host.events)
    resumed.host.info.ids, resumed.steps = {**resumed.host.info.ids, "attempt": 2}, 1
    arguments = {"thought": "Once.", "thought_type": "planning", "thought_id": "plan"}
    answer = await resumed.call(ToolCall(id="call_1", name="think_aloud"), arguments)
    assert (answer["thoughtId"], len(resumed.thoughts)) == ("plan", 1)


async def test_two_runs_of_one_tool_do_not_know_each_other() -> None:  # L39
    one, two = Thinker(), Thinker()
    two.tool = one.tool
    await one.think(thought_id="plan")
    assert (await two.think(thought_id="plan"))["thoughtId"] == "plan"
    assert (len(one.thoughts), len(two.thoughts)) == (1, 1)


def test_it_needs_no_approval_and_no_time_and_can_be_called_again() -> None:
    made = think_aloud()
    assert (made.approve, made.timeout, made.idempotent) == (False, None, True)
    assert made.enabled(FakeHost().context())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"types": ("musing",)}, "'musing'"),
        ({"types": ()}, "types"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"duplicates": "drop"}, "duplicates"),
        ({"limit": 0}, "limit"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Thoughts(**options)
