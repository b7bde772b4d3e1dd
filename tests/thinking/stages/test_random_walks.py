"""Random walks end within their budget."""

from __future__ import annotations

import json
from graphlib import TopologicalSorter
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rxloop.errors import StageChoiceRequired, StageRefused
from rxloop.strategies import STRATEGIES
from rxloop.thinking import StageManager, StrategyDefinition


class Walk(RuleBasedStateMachine):  # T57 T58 T69 T70 T83
    @initialize(
        strategy=st.sampled_from(list(STRATEGIES.values())),
        loop_cap=st.integers(0, 3),
        spare=st.none() | st.integers(0, 30),
    )
    def begin(self, strategy: StrategyDefinition, loop_cap: int, spare: int | None) -> None:
        budget = None if spare is None else strategy.steps_to_end(strategy.initial) + spare
        self.flow = StageManager(strategy, loop_cap=loop_cap, budget=budget)
        self.path = [strategy.initial]

    @precondition(lambda self: not self.flow.is_terminal)
    @rule(data=st.data())
    def enter_offered_stage(self, data: st.DataObject) -> None:
        stage = data.draw(st.sampled_from(self.flow.next_stages))
        assert stage in self.flow.next_stages
        assert self.flow.can_transition_to(stage)
        self.path.append(self.flow.enter(stage))

    @rule(data=st.data())
    def enter_stage_that_is_not_offered(self, data: st.DataObject) -> None:
        others = [stage for stage in [*self.flow.strategy.transitions, "nowhere"] if stage not in self.flow.next_stages]
        before = self.flow.snapshot()
        with pytest.raises(StageRefused) as caught:
            self.flow.enter(data.draw(st.sampled_from(others)))
        assert (caught.value.stage, caught.value.allowed) == (self.flow.stage, self.flow.next_stages)
        assert self.flow.snapshot() == before

    @rule()
    def advance(self) -> None:
        before, offered = self.flow.snapshot(), self.flow.next_stages
        if len(offered) == 1:
            self.path.append(self.flow.advance())
            return
        with pytest.raises(StageChoiceRequired if offered else StageRefused):
            self.flow.advance()
        assert self.flow.snapshot() == before

    @rule()
    def stay(self) -> None:
        remaining = self.flow.remaining
        assume(not self.flow.is_terminal)
        if remaining is not None and remaining == self.flow.steps_to_end:
            with pytest.raises(StageRefused):
                self.flow.stay()
        else:
            self.flow.stay()

    @rule()
    def restore(self) -> None:
        restored = StageManager.restore(json.loads(json.dumps(self.flow.snapshot())), self.flow.strategy)
        assert restored.snapshot() == self.flow.snapshot()
        assert (restored.next_stages, restored.passes) == (self.flow.next_stages, self.flow.passes)
        self.flow = restored

    @invariant()
    def history_matches_the_path(self) -> None:
        assert [*self.flow.history, self.flow.stage] == self.path

    @invariant()
    def end_is_reachable_within_the_budget(self) -> None:
        flow = self.flow
        assert flow.is_terminal is (not flow.next_stages)
        assert all(passes <= flow.loop_cap for passes in flow.passes.values())
        assert flow.remaining is None or flow.remaining >= flow.steps_to_end
        if flow.remaining is not None and flow.remaining == flow.steps_to_end:
            distances = [flow.strategy.steps_to_end(stage) for stage in flow.next_stages]
            assert all(distance < flow.strategy.steps_to_end(flow.stage) for distance in distances)

    def teardown(self) -> None:
        if not hasattr(self, "flow"):
            return
        # Even the longest path must end.
        flow, steps = self.flow, 0
        while not flow.is_terminal:
            flow.enter(max(flow.next_stages, key=flow.strategy.steps_to_end))
            steps += 1
            assert steps < 200
        assert flow.remaining is None or flow.remaining >= 0


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@st.composite
def definitions(draw: st.DrawFn) -> StrategyDefinition:
    """Draw a strategy in which each stage can reach the end."""
    size = draw(st.integers(2, 7))
    names = [f"s{index}" for index in range(size)]
    # Each stage leads to the next one, so that all are reachable. Other transitions are random.
    targets = {
        name: draw(st.permutations([names[index + 1], *draw(st.sets(st.sampled_from(names), max_size=3))]))
        for index, name in enumerate(names[:-1])
    }
    return StrategyDefinition.from_json(
        json.dumps(
            {
                "name": "any",
                "stages": {
                    name: {"next": [each for each in dict.fromkeys(targets.get(name, ())) if each != name]}
                    for name in names
                },
            }
        )
    )


@settings(max_examples=150, deadline=None)
@given(definitions(), st.integers(0, 3), st.none() | st.integers(0, 20), st.randoms(use_true_random=False))
def test_any_walk_in_any_strategy_ends_within_its_budget(
    definition: StrategyDefinition, loop_cap: int, spare: int | None, random: Random
) -> None:  # T69 T70 T72
    shortest = StageManager(definition, loop_cap=loop_cap).steps_to_end
    flow = StageManager(definition, loop_cap=loop_cap, budget=None if spare is None else shortest + spare)
    while not flow.is_terminal:
        flow.enter(random.choice(flow.next_stages))
        assert len(flow.history) <= 7 * (1 + loop_cap * len(definition.loops))
    assert flow.remaining is None or flow.remaining >= 0


@settings(max_examples=150, deadline=None)
@given(definitions())
def test_distances_and_loops_of_any_strategy_are_correct(definition: StrategyDefinition) -> None:  # T60
    for stage, following in definition.transitions.items():
        nearest = min((definition.steps_to_end(each) for each in following), default=-1)
        assert definition.steps_to_end(stage) == 1 + nearest
    forward = {
        stage: {each for each in following if (stage, each) not in definition.loops}
        for stage, following in definition.transitions.items()
    }
    assert [*TopologicalSorter(forward).static_order()]
    assert StageManager(definition, loop_cap=0).next_stages
