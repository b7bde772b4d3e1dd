from typing import Any

import pytest

from rxloop import Thoughts
from rxloop.context.token_estimator import TokenEstimator
from rxloop.errors import ConfigurationError, ToolError
from rxloop.protocol.events import ContentCompleteEvent, Event, ThoughtStreamEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph import ThoughtGraph
from rxloop.tools.think_aloud import ThinkAloud, think_aloud
from support.fake_host import FakeHost


class Thinker:
    """Fake run that calls `think_aloud` together with another tool."""

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


def test_schema_requires_a_thought_and_its_type() -> None:  # L15
    definition = think_aloud().definition
    assert definition.name == "think_aloud"
    assert definition.parameters["required"] == ["thought", "thought_type"]
    assert set(definition.parameters["properties"]) == {
        "thought", "thought_type", "thought_id", "related_to", "confidence", "alternatives", "verbosity"
    }  # fmt: skip


def test_definition_is_short_because_each_request_contains_it() -> None:
    # OpenAI's o200k_base needs 177 tokens for its compact JSON.
    assert TokenEstimator().count([], [think_aloud().definition]) <= 195


def test_only_allowed_types_are_offered_to_the_model() -> None:
    schema = think_aloud(Thoughts(types=("planning", "decision"), hidden=True)).definition
    assert schema.parameters["properties"]["thought_type"]["enum"] == ["planning", "decision"]
    assert schema.hidden  # L29


async def test_thought_is_one_event_and_its_id_is_returned() -> None:  # L17, L26
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


@pytest.mark.parametrize("fields", [{}, {"thought_id": ""}, {"thought_id": " "}, {"thought_id": None}])
async def test_missing_id_is_generated(fields: dict[str, Any]) -> None:  # L18
    run = Thinker()
    ids = [(await run.think(**fields))["thoughtId"] for _ in range(3)]
    assert ids == ["t1", "t2", "t3"] == [thought.thought_id for thought in run.thoughts]


async def test_generated_id_avoids_used_ids() -> None:  # L18
    run = Thinker()
    await run.think(thought_id="t2")
    assert (await run.think())["thoughtId"] == "t3"


async def test_related_to_links_a_thought_to_earlier_thoughts_and_calls() -> None:  # L19, L20
    run = Thinker()
    await run.think(thought_id="plan")
    first = await run.think(thought_id="next", related_to="plan")
    second = await run.think(thought_id="seen", related_to=" work_2 ")
    third = await run.think(thought_id="same", related_to="work_4")  # called by the same message
    assert not any("warning" in answer for answer in (first, second, third))
    assert ThoughtGraph.of(run.host.events).edges == (
        ("plan", "next", "thought"), ("work_2", "seen", "call"), ("work_4", "same", "call")
    )  # fmt: skip


async def test_unknown_related_to_is_kept_with_a_warning_that_suggests_ids() -> None:  # L21
    run = Thinker()
    await run.think(thought_id="check-units")
    answer = await run.think(related_to="check_unit")
    assert run.thoughts[1].related_to == "check_unit"
    assert answer["acknowledged"] is True
    assert "no thought or tool call has the id 'check_unit'; the nearest ids are check-units" in answer["warning"]


async def test_thought_related_to_itself_causes_a_warning() -> None:  # L21
    assert "warning" in await Thinker().think(thought_id="loop", related_to="loop")


async def test_used_id_gets_a_number_and_the_model_is_informed() -> None:  # L22
    run = Thinker()
    answers = [await run.think(thought_id="plan") for _ in range(3)]
    assert [answer["thoughtId"] for answer in answers] == ["plan", "plan-2", "plan-3"]
    assert answers[1]["message"] == "Noted as 'plan-2', because 'plan' was taken: refer to it by 'plan-2'."
    assert (await run.think(thought_id="work_1"))["thoughtId"] == "work_1-2"


async def test_used_id_can_be_kept_or_refused() -> None:  # L22
    keeping, refusing = Thinker(Thoughts(duplicates="keep")), Thinker(Thoughts(duplicates="refuse"))
    for run in (keeping, refusing):
        await run.think(thought_id="plan")
    assert (await keeping.think(thought_id="plan"))["thoughtId"] == "plan"
    with pytest.raises(ToolError, match="thought_id: 'plan' is taken"):
        await refusing.think(thought_id="plan")
    assert len(keeping.thoughts) == 2
    assert len(refusing.thoughts) == 1


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
async def test_invalid_argument_is_named_and_nothing_is_emitted(arguments: dict[str, Any], field: str) -> None:  # L23
    run = Thinker()
    with pytest.raises(ToolError, match=rf"(^|- ){field}: "):
        await run.call(ToolCall(id="call_1", name="think_aloud"), arguments)
    assert run.host.events == []


async def test_unknown_arguments_are_ignored_and_enum_values_are_case_insensitive() -> None:
    run = Thinker()
    await run.think("x", " Planning", verbosity="BRIEF", idea=1, thoughtNumber=2)
    assert [(thought.thought_type, thought.verbosity) for thought in run.thoughts] == [("planning", "brief")]


async def test_type_that_is_not_allowed_is_refused_with_the_allowed_ones() -> None:  # L24
    run = Thinker(Thoughts(types=("planning", "critique")))
    with pytest.raises(ToolError, match="thought_type: Input should be 'planning' or 'critique'"):
        await run.think("x", "decision")
    assert run.thoughts == []


async def test_type_is_case_insensitive() -> None:
    run = Thinker()
    await run.think("x", " Planning")
    assert run.thoughts[0].thought_type == "planning"


async def test_control_characters_are_removed_from_an_id() -> None:
    run = Thinker()
    assert (await run.think(thought_id="a\n\x1b b"))["thoughtId"] == "a b"
    assert "warning" not in await run.think(related_to=" a\x1b b")
    assert run.thoughts[1].related_to == "a b"


async def test_number_of_alternatives_is_limited() -> None:
    run = Thinker()
    with pytest.raises(ToolError, match="alternatives"):
        await run.think(alternatives=["x"] * 51)
    assert run.thoughts == []


async def test_default_verbosity_is_configurable() -> None:  # L25
    normal, brief = Thinker(), Thinker(Thoughts(verbosity="brief"))
    for run in (normal, brief):
        await run.think(verbosity=None)
        await run.think(verbosity="detailed")
    assert [thought.verbosity for thought in normal.thoughts] == ["normal", "detailed"]
    assert [thought.verbosity for thought in brief.thoughts] == ["brief", "detailed"]


async def test_null_is_a_missing_argument_and_a_number_is_a_valid_id() -> None:
    run = Thinker()
    nothing: dict[str, Any] = dict.fromkeys(["related_to", "confidence", "alternatives", "metadata"])
    assert (await run.think(thought_id=7, **nothing))["thoughtId"] == "7"
    assert run.thoughts[0].alternatives == []
    assert run.thoughts[0].metadata == {}
    assert run.thoughts[0].related_to is None


def make_thought_events(step: int) -> list[Event]:
    call = ToolCall(id=f"c{step}", name="think_aloud")
    return [
        ContentCompleteEvent(tool_calls=[call], step=str(step)),
        ToolCompleteEvent(call=call, success=True, content="", step=str(step)),
    ]


@pytest.mark.parametrize("iterations", [2, 3])
async def test_thinking_is_refused_after_several_iterations_of_nothing_else(iterations: int) -> None:  # L34
    run = Thinker(events=[event for step in range(iterations) for event in make_thought_events(step)])
    call = ToolCall(id="again", name="think_aloud")
    run.host.message(call, step="9")
    arguments = {"thought": "Once more.", "thought_type": "planning"}
    if iterations < 3:
        await run.call(call, arguments)
        return
    with pytest.raises(ToolError, match=r"3 times in a row and done nothing else\. Act now"):
        await run.call(call, arguments)
    assert run.thoughts == []


async def test_thinking_with_another_tool_is_never_refused() -> None:  # L34
    run = Thinker(events=[event for step in range(5) for event in make_thought_events(step)])
    await run.think()
    assert len(run.thoughts) == 1


async def test_earlier_thoughts_are_known_in_a_resumed_run() -> None:  # L37
    before = Thinker()
    await before.think(thought_id="plan")
    resumed = Thinker(events=before.host.events)
    resumed.host.info.ids, resumed.steps = {**resumed.host.info.ids, "attempt": 2}, 1
    assert "warning" not in await resumed.think("Go on.", related_to="plan")
    assert resumed.thoughts[-1].thought_id == "t2"


async def test_call_interrupted_after_its_thought_does_not_repeat_the_thought() -> None:  # L37
    before = Thinker()
    await before.think("Once.", thought_id="plan")
    resumed = Thinker(events=before.host.events)
    resumed.host.info.ids, resumed.steps = {**resumed.host.info.ids, "attempt": 2}, 1
    arguments = {"thought": "Once.", "thought_type": "planning", "thought_id": "plan"}
    answer = await resumed.call(ToolCall(id="call_1", name="think_aloud"), arguments)
    assert answer["thoughtId"] == "plan"
    assert len(resumed.thoughts) == 1


async def test_runs_that_share_a_tool_are_independent() -> None:  # L39
    one, two = Thinker(), Thinker()
    two.tool = one.tool
    await one.think(thought_id="plan")
    assert (await two.think(thought_id="plan"))["thoughtId"] == "plan"
    assert len(one.thoughts) == 1
    assert len(two.thoughts) == 1


def test_think_aloud_needs_no_approval_and_is_idempotent() -> None:
    tested_tool = think_aloud()
    assert tested_tool.approve is False
    assert tested_tool.timeout is None
    assert tested_tool.idempotent is True
    assert tested_tool.enabled(FakeHost().context())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": ("musing",)}, "'musing'"),
        ({"types": ()}, "types"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"duplicates": "drop"}, "duplicates"),
        ({"limit": 0}, "limit"),
    ],
)
def test_invalid_setting_is_refused_with_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Thoughts(**options)
