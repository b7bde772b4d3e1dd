"""Stage tables of the nine strategies.

A flow is written one stage a line: the fields that its thoughts are to have in parentheses, `|` between those of which
one will do, and after the arrow what may follow, `|` between the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from rxloop.errors import ConfigurationError
from rxloop.thinking.stages.definition import Branching, IterationPoint, Stage, StrategyDefinition, Trait
from rxloop.thinking.stages.wording import STAGES


def _table(
    name: str,
    title: str,
    flow: str,
    *,
    pattern: str,
    when: str,
    traits: str,
    aliases: tuple[str, ...] = (),
    loop: IterationPoint | None = None,
    branching: Branching | None = None,
) -> StrategyDefinition:
    return StrategyDefinition(
        name=name,
        title=title,
        aliases=aliases,
        when=when,
        pattern=pattern,
        stages=tuple(_stage(line) for line in flow.strip().splitlines()),
        iteration_point=loop,
        branching=branching,
        traits=cast("frozenset[Trait]", frozenset(traits.split())),
    )


def _stage(line: str) -> Stage:
    left, _, right = line.partition("->")
    name, _, fields = left.strip().rstrip(")").partition(" (")
    description, prompt = STAGES[name]
    return Stage(
        name=name,
        next=tuple(right.replace("|", " ").split()),
        description=description,
        prompt=prompt,
        fields=tuple(field.replace(" ", "") for field in fields.split(",") if field),
    )


_TABLES = (
    _table(
        "linear",
        "Base Sequential",
        """
        problem_reception -> initial_thought_planning
        initial_thought_planning -> thought_generation
        thought_generation -> thought_evaluation
        thought_evaluation -> thought_revision | continuation_decision
        thought_revision (isRevision, revisesThought) -> continuation_decision
        continuation_decision -> thought_adjustment | branch_creation | hypothesis_generation
        thought_adjustment (needsMoreThoughts, totalThoughts) -> thought_generation
        branch_creation (branchFromThought, branchId) -> thought_generation
        hypothesis_generation (hypothesis) -> hypothesis_verification
        hypothesis_verification -> solution_finalization | continuation_decision
        solution_finalization -> final_response
        final_response
        """,
        aliases=("base_sequential",),
        pattern="adaptive",
        when="For open problems whose length cannot be foreseen: it thinks, revises, branches off, and tests a "
        "hypothesis.",
        traits="backtracking revision verification dynamic_thought_count",
        loop=IterationPoint(
            stage="continuation_decision",
            back_to=("thought_generation",),
            via=("thought_adjustment", "branch_creation"),
        ),
        branching=Branching(kind="explicit", stage="branch_creation", fields=("branchFromThought", "branchId")),
    ),
    _table(
        "chain_of_thought",
        "Chain of Thought",
        """
        problem_reception -> step_decomposition
        step_decomposition -> sequential_reasoning
        sequential_reasoning -> solution_formulation
        solution_formulation -> answer_verification
        answer_verification -> final_response
        final_response
        """,
        pattern="linear",
        when="For problems that fall into a few steps in a fixed order, such as arithmetic and logic; the cheapest of "
        "all.",
        traits="verification",
    ),
    _table(
        "react",
        "ReAct",
        """
        problem_reception -> initial_reasoning
        initial_reasoning -> action_planning
        action_planning -> action_execution
        action_execution (action | plannedActions) -> observation_reception
        observation_reception (observation | actionResults) -> reasoning_update
        reasoning_update -> evaluation_checkpoint
        evaluation_checkpoint -> action_planning | solution_formulation
        solution_formulation -> final_response
        final_response
        """,
        pattern="cyclic",
        when="For questions that need tools, where each result decides what to do next.",
        traits="external_tools backtracking revision verification dynamic_thought_count",
        loop=IterationPoint(stage="evaluation_checkpoint", back_to=("action_planning",)),
    ),
    _table(
        "rewoo",
        "ReWOO",
        """
        problem_reception -> planning_phase
        planning_phase -> tool_call_specification
        tool_call_specification (planningPhase) -> working_phase
        working_phase (toolCalls | plannedActions) -> evidence_collection
        evidence_collection -> solving_phase
        solving_phase -> final_response
        final_response
        """,
        pattern="modular",
        when="For several tool calls that can be planned ahead: two model calls in all, and the tools run side by "
        "side.",
        traits="external_tools",
    ),
    _table(
        "scratchpad",
        "Scratchpad",
        """
        problem_reception -> scratchpad_initialization
        scratchpad_initialization -> iterative_calculation
        iterative_calculation (stateVariables) -> state_tracking
        state_tracking (stateVariables) -> continuation_decision
        continuation_decision -> iterative_calculation | result_extraction
        result_extraction -> final_response
        final_response
        """,
        pattern="iterative",
        when="For calculations and simulations in which intermediate values must not get lost.",
        traits="backtracking revision dynamic_thought_count",
        loop=IterationPoint(stage="continuation_decision", back_to=("iterative_calculation",)),
    ),
    _table(
        "self_ask",
        "Self-Ask",
        """
        problem_reception -> problem_decomposition
        problem_decomposition -> sub_question_formulation
        sub_question_formulation -> sub_question_answering
        sub_question_answering (subQuestion, subQuestionNumber, subQuestionAnswer) -> answer_integration
        answer_integration -> completion_check
        completion_check -> sub_question_formulation | solution_formulation
        solution_formulation -> final_response
        final_response
        """,
        pattern="hierarchical",
        when="For questions with several hops, whose answer rests on the answers to simpler questions.",
        traits="backtracking dynamic_thought_count",
        loop=IterationPoint(stage="completion_check", back_to=("sub_question_formulation",)),
    ),
    _table(
        "self_consistency",
        "Self-Consistency",
        """
        problem_reception -> multiple_path_sampling
        multiple_path_sampling -> reasoning_path_execution
        reasoning_path_execution (reasoningPathId) -> answer_collection
        answer_collection (pathAnswers) -> consistency_analysis
        consistency_analysis -> majority_selection
        majority_selection -> final_response
        final_response
        """,
        pattern="parallel",
        when="For problems with one short answer, where a single line of reasoning often goes wrong: several lines "
        "vote.",
        traits="multiple_paths verification consensus",
        branching=Branching(
            kind="parallel_paths", stage="multiple_path_sampling", fields=("reasoningPathId", "pathAnswers")
        ),
    ),
    _table(
        "step_back",
        "Step-Back",
        """
        problem_reception -> abstraction
        abstraction -> principle_identification
        principle_identification -> approach_selection
        approach_selection (generalPrinciple) -> specific_application
        specific_application -> step_by_step_solution
        step_by_step_solution -> solution_verification
        solution_verification -> final_response
        final_response
        """,
        pattern="hierarchical",
        when="For questions full of detail that a general law or principle decides, as in science and engineering.",
        traits="backtracking revision verification",
    ),
    _table(
        "tree_of_thoughts",
        "Tree of Thoughts",
        """
        problem_reception -> approach_exploration
        approach_exploration -> branch_creation
        branch_creation (approaches) -> branch_development
        branch_development (approachId) -> branch_evaluation
        branch_evaluation -> branch_selection
        branch_selection (evaluationScore) -> continuation_decision
        continuation_decision -> branch_development | branch_creation | solution_formulation
        solution_formulation -> path_justification
        path_justification -> final_response
        final_response
        """,
        pattern="branching",
        when="For puzzles and designs with many beginnings of which few succeed, and where a partial answer can be "
        "judged.",
        traits="multiple_paths backtracking revision verification dynamic_thought_count",
        loop=IterationPoint(stage="continuation_decision", back_to=("branch_development", "branch_creation")),
        branching=Branching(
            kind="tree",
            stage="branch_creation",
            fields=("approaches", "approachId", "branchId", "evaluationScore"),
        ),
    ),
)

STAGE_TABLES: Mapping[str, StrategyDefinition] = MappingProxyType({table.name: table for table in _TABLES})
"""The stage tables of the nine strategies, by name."""

_ALIASES = {alias: table for table in STAGE_TABLES.values() for alias in (table.name, *table.aliases)}


def table_of(name: str) -> StrategyDefinition:
    """Look up the stage table of a strategy by its name or alias; `Tree-of-Thoughts` and `tree of thoughts` work too.

    Raises:
        ConfigurationError: There is no such strategy; the message lists the nine.
    """
    found = _ALIASES.get(name) or _ALIASES.get(name.strip().lower().replace("-", "_").replace(" ", "_"))
    if found is None:
        raise ConfigurationError(f"there is no strategy {name!r}; there are {', '.join(STAGE_TABLES)}")
    return found
