"""Random walks: whatever is chosen of what is offered, a flow ends, and in time."""

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
    def go_on(self, data: st.DataObject) -> None:
        stage = data.draw(st.sampled_from(self.flow.next_stages))
        assert stage in self.flow.next_stages
        self.path.append(self.flow.transition_to(stage))

    @rule(data=st.data())
    def ask_for_what_is_not_offered(self, data: st.DataObject) -> None:
        others = [stage for stage in [*self.flow.strategy.transitions, "nowhere"] if stage not in self.flow.next_stages]
        before = self.flow.snapshot()
        with pytest.raises(StageRefused) as caught:
            self.flow.transition_to(data.draw(st.sampled_from(others)))
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
        again = StageManager.restore(json.loads(json.dumps(self.flow.snapshot())), self.flow.strategy)
        assert again.snapshot() == self.flow.snapshot()
        assert (again.next_stages, again.passes) == (self.flow.next_stages, self.flow.passes)
        self.flow = again

    @invariant()
    def it_is_where_it_went(self) -> None:
        assert [*self.flow.history, self.flow.stage] == self.path

    @invariant()
    def it_can_always_go_on_to_the_end_and_in_time(self) -> None:
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
        # Always what leads farthest from the end: the walk ends all the same.
        flow, steps = self.flow, 0
        while not flow.is_terminal:
            flow.transition_to(max(flow.next_stages, key=flow.strategy.steps_to_end))
            steps += 1
            assert steps < 200
        assert flow.remaining is None or flow.remaining >= 0


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@st.composite
def definitions(draw: st.DrawFn) -> StrategyDefinition:
    """Strategies of any shape in which every stage leads on."""
    size = draw(st.integers(2, 7))
    names = [f"s{place}" for place in range(size)]
    # A thread through all stages makes every one reachable and leading to the end; the rest is chance.
    ways = {
        name: draw(st.permutations([names[place + 1], *draw(st.sets(st.sampled_from(names), max_size=3))]))
        for place, name in enumerate(names[:-1])
    }
    return StrategyDefinition.from_json(
        json.dumps(
            {
                "name": "any",
                "stages": {
                    name: {"next": [each for each in dict.fromkeys(ways.get(name, ())) if each != name]}
                    for name in names
                },
            }
        )
    )


@settings(max_examples=150, deadline=None)
@given(definitions(), st.integers(0, 3), st.none() | st.integers(0, 20), st.randoms(use_true_random=False))
def test_in_a_strategy_of_any_shape_every_walk_ends_in_time(
    definition: StrategyDefinition, loop_cap: int, spare: int | None, random: Random
) -> None:  # T69 T70 T72
    shortest = StageManager(definition, loop_cap=loop_cap).steps_to_end
    flow = StageManager(definition, loop_cap=loop_cap, budget=None if spare is None else shortest + spare)
    while not flow.is_terminal:
        flow.transition_to(random.choice(flow.next_stages))
        assert len(flow.history) <= 7 * (1 + loop_cap * len(definition.loops))
    assert flow.remaining is None or flow.remaining >= 0


@settings(max_examples=150, deadline=None)
@given(definitions())
def test_in_a_strategy_of_any_shape_distances_and_ways_back_are_right(definition: StrategyDefinition) -> None:  # T60
    for stage, following in definition.transitions.items():
        nearest = min((definition.steps_to_end(each) for each in following), default=-1)
        assert definition.steps_to_end(stage) == 1 + nearest
    forward = {
        stage: {each for each in following if (stage, each) not in definition.loops}
        for stage, following in definition.transitions.items()
    }
    assert [*TopologicalSorter(forward).static_order()]
    assert StageManager(definition, loop_cap=0).next_stages
